from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.quantities import bandwidth_text, bytes_per_second


@pytest.mark.parametrize(
    ("rate", "text"), [(12.5e6, "100mbit"), (125e6, "1gbit"), (187_500, "1.5mbit"), (125, "1kbit"), (1, "8bit")]
)
def test_bandwidth_text_names_the_largest_unit(rate: float, text: str) -> None:
    assert bandwidth_text(rate) == text
    assert bytes_per_second(text) == rate


@given(st.integers(1, 10**9).map(lambda kilobits: kilobits * 125.0))
def test_bandwidth_text_is_read_as_the_same_rate(rate: float) -> None:
    assert bytes_per_second(bandwidth_text(rate)) == pytest.approx(rate, rel=1e-9)
