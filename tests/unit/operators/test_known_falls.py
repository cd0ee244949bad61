"""When B falls at once to what passes, and when on trial only: late acknowledgements look like a full link."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from statistics import mean

import pytest

from dataflow.reports import LinkRates, Rates
from operators.cost_model import Choice, CostModel
from operators.known import Known
from tests.unit.operators.test_cost_model import GAMMA, MEASURED, PEERS, M, at_ease, rates, run, world

PACE, SMALL = 400.0, CostModel(model_nbytes=53_000)
SECOND = 2
"""Measurements."""


def measured(choice: Choice, *, late: bool) -> Rates:
    """What a node measures whose link carries anything; its peers hold it back where they acknowledge late."""
    blocked, delay_s = (0.3, 0.04) if late else (0.0, 0.004)
    steps = int(0.5 * PACE * (1 - blocked))
    rounds = steps / choice.every
    nbytes, busy_s = int(rounds * SMALL.model_nbytes / choice.partitions), min(0.5, rounds * delay_s)
    links = {peer: LinkRates(nbytes, busy_s, delay_s) for peer in range(1, PEERS + 1)}
    exchange_s = 0.0012 * rounds * PEERS
    return Rates(0.5, steps, compute_s=0.1, exchange_s=exchange_s, busy_s=busy_s, blocked_s=0.5 * blocked, links=links)


def partitions(late: Iterable[bool]) -> list[int]:
    known, choice, chosen = Known(), SMALL.first(PEERS), list[int]()
    for each in late:
        known, choice = SMALL.decide(known, choice, measured(choice, late=each), PEERS)
        chosen.append(choice.partitions)
    return chosen


def test_acknowledgements_that_are_late_for_ten_minutes_make_p_five_times_as_much_at_most_and_none_of_it_stays() -> (
    None
):
    chosen = partitions([False] * 10 + [True] * 600 * SECOND + [False] * 20 * SECOND)
    assert chosen[9] == 4
    assert max(chosen) <= 24
    assert chosen[-1] == 4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("length", [1, 4, 10, 40])
def test_acknowledgements_that_are_late_now_and_then_do_not_let_p_run_away(
    seed: int, share: float, length: int
) -> None:
    """Where it is 4; each of these made it 256 before, for most of the time."""
    rng = random.Random(seed)
    late = [is_late for _ in range(600 * SECOND // length) for is_late in [rng.random() < share] * length]
    chosen = partitions([False] * 10 + late)
    assert max(chosen) <= 100
    assert mean(chosen) <= 32


def test_link_that_falls_again_within_half_a_minute_is_followed_within_ten_seconds() -> None:
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [40e6] * 20)
    known, (*_, choice) = run(MEASURED, known, choice, [12.5e6] * 10 * SECOND)
    known, chosen = run(MEASURED, known, choice, [4e6] * 10 * SECOND)
    needed = GAMMA * M * PEERS / 4e6
    assert choice.partitions < 0.5 * needed
    assert chosen[-1].partitions >= needed


def test_link_that_falls_again_after_half_a_minute_is_followed_within_two_measurements() -> None:
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [40e6] * 20)
    known, (*_, choice) = run(MEASURED, known, choice, [12.5e6] * 40 * SECOND)
    known, chosen = run(MEASURED, known, choice, [4e6] * 2)
    assert choice.partitions < 0.5 * GAMMA * M * PEERS / 4e6
    assert chosen[-1].partitions >= GAMMA * M * PEERS / 4e6


def test_fall_after_one_that_did_not_help_undoes_it_and_others_are_tried_only_for_ever_longer() -> None:
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [40e6] * 20)
    before, barred = known.bandwidth, list[int]()
    for _ in range(2):
        known, (*_, choice) = run(MEASURED, known, choice, [12.5e6] * 8)
        assert known.barred == 0
        for _ in range(8):
            known, choice = MEASURED.decide(known, choice, world(4e6, choice), PEERS)
            if known.barred:
                break
        barred.append(known.barred)
        assert known.bandwidth == pytest.approx(before, rel=0.01)
        known = dataclasses.replace(known, barred=0)
    assert barred == [64, 128]


def test_link_of_a_node_that_nobody_holds_back_is_followed_within_two_measurements_however_often_it_changes() -> None:
    """Its peers wait for it, and it for nobody."""
    rng, known, choice, flooded = random.Random(0), Known(), MEASURED.first(PEERS), 0
    for number in range(1200 * SECOND):
        if number % (10 * SECOND) == 0:
            bandwidth = rng.choice([40e6, 20e6, 12.5e6, 6e6, 4e6])
        share = bandwidth * choice.span / (GAMMA * M * PEERS)
        told = at_ease(bandwidth, choice) if share >= 1 else rates(bandwidth, 1.0, delay=0.1)
        known, choice = MEASURED.decide(known, choice, told, PEERS)
        flooded = flooded + 1 if share < 1 else 0
        assert flooded <= 3, (number, bandwidth, choice)


def test_silence_while_a_fall_was_wrong_makes_b_no_less_for_longer_than_it_lasts() -> None:
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [40e6] * 20)
    known = dataclasses.replace(known, barred=60)
    for _ in range(4):
        known, choice = MEASURED.decide(known, choice, rates(0.0, 1.0, steps=0, blocked=1.0), PEERS)
    assert known.bandwidth < 5e6
    for _ in range(3):
        offered = 0.75 * GAMMA * M * PEERS / choice.span
        known, choice = MEASURED.decide(known, choice, rates(offered, 1.0, steps=37, blocked=0.25, delay=0.1), PEERS)
    assert known.bandwidth == pytest.approx(40e6, rel=0.01)


def test_fall_from_which_b_has_come_back_is_over() -> None:
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [40e6] * 80)
    for bandwidth, measurements in ((10e6, 8), (150e6, 40), (75e6, 4)):
        known, (*_, choice) = run(MEASURED, known, choice, [bandwidth] * measurements)
    assert known.barred == 0
    assert known.bandwidth >= 70e6
