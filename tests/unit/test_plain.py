from __future__ import annotations

import math

import numpy as np
import pytest

from dataflow.plain import plain
from dataflow.reports import OperatorReport


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_number_that_json_does_not_know_is_none(number: float) -> None:
    assert plain({"known": 0.5, "deep": [number, (number, 1)]}) == {"known": 0.5, "deep": [None, [None, 1]]}


def test_dataclass_is_its_fields_and_keys_are_words() -> None:
    assert plain({1: OperatorReport("apply.rate", {"rate": True})}) == {
        "1": {"port": "apply.rate", "fields": {"rate": True}}
    }
