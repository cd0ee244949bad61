"""A share of a core: what a node with one gets done by when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.sim.quota import Quota


def test_work_runs_until_the_slice_is_used_up_and_goes_on_in_the_next() -> None:
    quota = Quota(0.4, 1.0, 0.0)
    assert quota.done(0.0, 0.3) == pytest.approx(0.3)
    assert quota.done(0.3, 0.3) == pytest.approx(1.2)
    assert quota.awake(0.5) == pytest.approx(1.0)
    assert quota.awake(1.1) == pytest.approx(1.1)
    assert quota.stood_s(0.3, 1.2) == pytest.approx(0.6)


def test_what_is_not_used_of_a_slice_is_lost() -> None:
    quota = Quota(0.5, 1.0, 0.0)
    assert quota.done(0.8, 0.7) == pytest.approx(1.5)
    assert quota.done(2.9, 0.2) == pytest.approx(3.1)


def test_what_runs_beside_other_work_uses_the_core_once() -> None:
    quota = Quota(0.5, 1.0, 0.0)
    assert quota.done(0.0, 0.8) == pytest.approx(1.3)
    assert quota.done(0.1, 0.2) == pytest.approx(0.3)
    assert quota.done(0.4, 0.2) == pytest.approx(1.1)
    assert quota.done(0.7, 0.1) == pytest.approx(1.1)
    assert quota.done(1.3, 0.2) == pytest.approx(1.5)
    assert quota.done(1.5, 0.1) == pytest.approx(2.1)


def test_slices_begin_at_their_phase() -> None:
    quota = Quota(0.25, 1.0, 0.5)
    assert quota.done(0.5, 0.5) == pytest.approx(1.75)


SHARES = st.floats(0.05, 0.95)
WORK = st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.001, 3.0)), min_size=1, max_size=20)


@given(SHARES, st.floats(0.01, 1.0), st.floats(0.0, 1.0), WORK)
def test_one_task_after_the_other_never_uses_more_than_the_share(
    share: float, period_s: float, phase: float, work: list[tuple[float, float]]
) -> None:
    quota, now, spans = Quota(share, period_s, phase * period_s), 0.0, list[tuple[float, float, float]]()
    for pause_s, work_s in work:
        begin_s = now + pause_s
        now = quota.done(begin_s, work_s)
        assert now >= begin_s + work_s - 1e-9
        spans.append((begin_s, now, work_s))
    # A task that takes whole periods gets its share of each, and at most as much again at either end.
    for begin_s, end_s, work_s in spans:
        assert work_s <= share * (end_s - begin_s) + 2 * share * period_s + 1e-9
        assert work_s >= share * (end_s - begin_s) - 2 * share * period_s - 1e-9


def test_work_of_very_many_slices_is_told_soon_and_forgotten_once_it_is_past() -> None:
    quota = Quota(0.5, 1.0, 0.0)
    assert quota.done(0.0, 50_000.0) == pytest.approx(99_999.5)
    assert quota.awake(70_000.75) == pytest.approx(70_001.0)
    assert quota.stood_s(70_000.0, 70_010.0) == pytest.approx(5.0)
    assert quota.done(70_000.0, 1.25) == pytest.approx(70_002.25)
    assert quota.done(200_000.0, 0.25) == pytest.approx(200_000.25)
    assert quota.stood_s(0.0, 90_000.0) == 0.0
