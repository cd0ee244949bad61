"""What measurements say of a link: B, and the choices that follow."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.cost_model import Choice, CostModel
from operators.known import Known, not_full
from operators.known import full as learn_full
from tests.unit.operators.measurements import GAMMA, MEASURED, PEERS, M, at_ease, full, rates, run, world


def test_full_link_says_what_it_carries_and_p_follows_within_two_measurements():
    """300 MB/s are offered, over r; 30 pass, and 27 of them are used: 11.1 partitions."""
    known, chosen = run(MEASURED, Known(), Choice(1, 1), [30e6] * 2)
    assert known.bandwidth == pytest.approx(30e6, rel=0.01)
    assert chosen == [(1, 1), (12, 1)]


def test_gamma_of_a_node_that_waits_for_its_link_is_that_of_one_that_does_not():
    known, _ = run(MEASURED, Known(), Choice(1, 1), [30e6])
    assert full(30e6, Choice(1, 1)).steps == 5
    assert known.gradients_per_s == pytest.approx(GAMMA, rel=0.01)


def test_bandwidth_that_is_cut_to_a_tenth_is_followed_within_five_seconds():
    known, (*_, before) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    assert before == (3, 1)
    known, chosen = run(MEASURED, known, before, [12.5e6] * 10)
    assert chosen[1] == chosen[-1] == (27, 1)


def test_silence_while_something_waits_halves_the_bandwidth_four_times_and_no_more():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [30e6] * 8)
    silent = rates(0.0, 1.0, steps=0, blocked=1.0)
    seen = []
    for _ in range(600):
        known, choice = MEASURED.decide(known, choice, silent, PEERS)
        seen.append((known.bandwidth / 1e6, choice.partitions))
    assert [bandwidth for bandwidth, _ in seen[:5]] == pytest.approx([15, 7.5, 3.75, 1.875, 1.875], rel=0.01)
    assert seen[1][1] == pytest.approx(300 / 6.75, abs=1)
    assert seen[-1][1] == pytest.approx(300 / 1.6875, abs=2)


def test_bandwidth_that_rises_is_believed_twice_as_much_every_two_seconds():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [12.5e6] * 8)
    known, chosen = run(MEASURED, known, choice, [125e6] * 24)
    assert choice.partitions in (26, 27)
    assert [key.partitions for key, _ in itertools.groupby(chosen)] == [choice.partitions, 14, 7, 4, 3]


def test_bandwidth_is_raised_though_what_passes_does_so_in_no_time_that_is_counted():
    """A kernel counts busy time in ticks of some milliseconds."""
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [12.5e6] * 8)
    fallen = known.bandwidth
    for number in range(16):
        offered = GAMMA * M * PEERS / choice.span
        known, choice = MEASURED.decide(known, choice, rates(offered, 0.008 * (number % 2)), PEERS)
    assert known.bandwidth >= 4 * fallen


def test_bursts_beyond_what_a_link_carries_are_believed_ever_later():
    """What passes in bursts passes at 10 times the rate: more is tried, and found too much, but ever less often."""
    known, choice, raised = Known(), Choice(1, 1), []
    for number in range(400):
        measured = world(12.5e6, choice)
        if measured.busy_s < 0.5:
            measured = rates(measured.sent_nbytes / 0.5, 0.09)
        known, after = MEASURED.decide(known, choice, measured, PEERS)
        if after.partitions < choice.partitions:
            raised.append(number)
        choice = after
    assert known.patience == 64
    gaps = [later - earlier for earlier, later in itertools.pairwise(raised)]
    assert gaps == sorted(gaps)
    assert len(raised) <= 8


def spans_where_rounds_are_rare(cost, pace, trickle):
    """The spans chosen in ten minutes on a link of 100 Mbit/s, on which so many bytes pass for each half of 2 s."""
    known, choice = Known(), cost.first(PEERS)
    gradients = unsent = waits = 0.0
    spans = []
    for number in range(1200):
        bad = trickle is not None and 60 <= number < 64
        gradients += pace / 2
        steps, gradients = divmod(gradients, 1)
        rounds, unsent = divmod(unsent + steps, choice.every)
        waits = min(64e6, waits + rounds * cost.model_nbytes * PEERS / (1 if cost.in_turn else choice.partitions))
        passed = min(waits, trickle if bad else 6.25e6)
        waits -= passed
        busy = 1.0 if waits else passed / 6.25e6
        measured = rates(2 * passed, busy, steps=int(steps), delay=3.0 if bad else 0.002)
        known, choice = cost.decide(known, choice, measured, PEERS)
        spans.append(choice.span)
    return spans


@pytest.mark.parametrize(
    ("cost", "pace"),
    [
        (CostModel(model_nbytes=60_000_000), 0.7),
        (CostModel(model_nbytes=100_000_000), 0.5),
        (CostModel(model_nbytes=20_000, in_turn=True), 200.0),
    ],
)
@pytest.mark.parametrize("trickle", [5_000, 50_000])
def test_bandwidth_comes_back_after_two_bad_seconds_though_nothing_is_sent_in_most_measurements(cost, pace, trickle):
    usual = spans_where_rounds_are_rare(cost, pace, None)
    spans = spans_where_rounds_are_rare(cost, pace, trickle)
    assert 20 * usual[-1] < max(spans[60:]) <= cost.cells
    assert spans[-1] <= 2 * usual[-1]


@pytest.mark.parametrize("gap", [0, 8, 16, 40])
def test_bursts_are_believed_ever_later_also_where_nothing_is_sent_between_rounds(gap):
    """A link that carries a round of up to 1.2 MB/s in bursts; of a larger one it is full for a second and a half."""
    known, raised = replace(Known(), bandwidth=1e6), 0
    for _ in range(400):
        before = known.bandwidth
        for _ in range(2 if known.bandwidth <= 1.2e6 else 3):
            if before <= 1.2e6:
                known = not_full(known, rates(8e6, 0.5, delay=0.05))
            else:
                known = learn_full(known, rates(1e6, 1.0, delay=0.05))
        raised += known.bandwidth > before
        for _ in range(gap):
            known = not_full(known, rates(0.0, 0.0))
    assert 0 < raised <= 20
    assert known.patience == 64


def test_bandwidth_that_falls_and_rises_every_hour_is_believed_as_soon_each_time():
    known, waits = Known(), []
    for _ in range(6):
        for _ in range(200):
            known = learn_full(known, rates(125_000, 1.0, delay=0.05))
        waited = 0
        while known.bandwidth < 10e6:
            known, waited = not_full(known, rates(600_000, 0.05, delay=0.05)), waited + 1
        waits.append(waited)
        for _ in range(200):
            known = not_full(known, rates(600_000, 0.05, delay=0.05))
    assert waits == waits[:1] * 6


def test_nodes_far_from_each_other_do_not_take_their_distance_for_a_full_link():
    """Delays hold the node back to a third of its pace whatever it sends, and something is always under way."""
    known, choice = Known(), Choice(2, 1)
    for _ in range(100):
        passed = GAMMA / 3 * M * PEERS / choice.span
        measured = rates(passed, 1.0, steps=17, blocked=2 / 3, delay=0.1)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
    assert known.bandwidth == pytest.approx(GAMMA / 3 * M * PEERS / 2 / 2, rel=0.05)  # half of what had passed
    assert choice.partitions <= 14


def test_node_that_is_slower_for_a_while_does_not_take_its_link_for_full():
    """Others have the processor: a third of the gradients, and something is always under way, but nothing held back."""
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    before = known.bandwidth
    for _ in range(3):
        measured = rates(GAMMA / 3 * M * PEERS / choice.span, 1.0, steps=17, delay=0.03)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
    assert known.bandwidth == before
    assert choice == (3, 1)


def test_full_link_is_believed_at_the_second_measurement_only():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    before = known.bandwidth
    for _ in range(5):
        known, choice = MEASURED.decide(known, choice, full(1e6, choice), PEERS)
        assert known.bandwidth == before
        known, choice = MEASURED.decide(known, choice, at_ease(125e6, choice), PEERS)
    assert choice == (3, 1)
    known, _ = MEASURED.decide(known, choice, full(50e6, choice), PEERS)
    known, _ = MEASURED.decide(known, choice, full(50e6, choice), PEERS)
    assert known.bandwidth == pytest.approx(50e6, rel=0.01)


def test_full_link_is_believed_at_the_third_measurement_after_one_in_which_nothing_passed():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    silent, seen = rates(0.0, 1.0, steps=0, blocked=1.0), []
    for measured in (full(20e6, choice), silent, *[full(20e6, choice)] * 3):
        known = MEASURED.learn(known, choice, measured, PEERS)
        seen.append(known.bandwidth / 1e6)
    assert seen == pytest.approx([125, 62.5, 62.5, 62.5, 20], rel=0.1)


def test_bandwidth_of_a_full_link_counts_each_measurement_half_as_much_as_the_next():
    known = MEASURED.learn(Known(), Choice(3, 1), full(50e6, Choice(3, 1)), PEERS)
    known = MEASURED.learn(known, Choice(3, 1), full(20e6, Choice(3, 1)), PEERS)
    assert known.bandwidth == pytest.approx(30e6, rel=0.01)


@pytest.mark.parametrize(
    ("delays", "bandwidth"),
    [([0.03], 50e6), ([0.05], 43.4e6), ([0.05, 0.05, 0.02], 10.6e6)],
    ids=["short", "more than twice the shortest", "short again, after it queued"],
)
def test_bandwidth_falls_below_half_of_what_has_passed_only_once_something_queues(delays, bandwidth):
    known, choice = Known(), Choice(3, 1)
    for _ in range(2):
        known = MEASURED.learn(known, Choice(1, 1), full(100e6, Choice(1, 1), delay=0.02), PEERS)
    for delay in delays:
        known = MEASURED.learn(known, choice, full(1e6, choice, delay=delay), PEERS)
    assert known.bandwidth == pytest.approx(bandwidth, rel=0.01)


def test_shortest_delay_is_forgotten_by_half_in_seventy_measurements():
    known = MEASURED.learn(Known(), Choice(3, 1), at_ease(125e6, Choice(3, 1), delay=0.02), PEERS)
    for _ in range(70):
        known = MEASURED.learn(known, Choice(3, 1), at_ease(125e6, Choice(3, 1), delay=0.5), PEERS)
    assert known.least_delay_s == pytest.approx(0.04, rel=0.01)


@pytest.mark.parametrize(("well", "patience"), [(15, 8), (16, 4)])
def test_bandwidth_that_was_raised_proves_wrong_if_nothing_passes_soon(well, patience):
    known, choice = Known(), Choice(3, 1)
    for measured in (*[at_ease(200e6, choice)] * (4 + well), rates(0.0, 1.0, steps=0, blocked=1.0)):
        known = MEASURED.learn(known, choice, measured, PEERS)
    assert known.bandwidth == pytest.approx(100e6)
    assert (known.patience, known.before > 0) == (patience, patience == 4)


def test_more_that_passes_now_and_then_raises_no_bandwidth():
    known, choice = Known(), Choice(3, 1)
    for number in range(40):
        known = MEASURED.learn(known, choice, at_ease(200e6 if number % 4 else 125e6, choice), PEERS)
    assert known.bandwidth == 125e6


def test_bandwidth_is_what_it_was_before_a_silence_though_little_is_sent_after_it():
    known, choice = Known(), Choice(6, 1)
    for measured in (at_ease(70e6, choice), rates(0.0, 1.0, steps=0, blocked=1.0), *[at_ease(70e6, choice)] * 4):
        known = MEASURED.learn(known, choice, measured, PEERS)
    assert known.bandwidth == 125e6


def test_peer_that_stands_still_for_two_seconds_costs_bandwidth_until_all_passes_again_for_two():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    before, chosen = known.bandwidth, []
    still = rates(0.0, 1.0, steps=0, blocked=1.0)
    for measured in (full(20e6, choice), *[still] * 3, rates(1e6, 1.0, steps=3, blocked=0.9, delay=1.0)):
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
        chosen.append(choice.partitions)
    assert known.bandwidth == pytest.approx(before / 8)
    assert max(chosen) <= 3 * 8
    for _ in range(4):
        known, choice = MEASURED.decide(known, choice, at_ease(125e6, choice), PEERS)
    assert known.bandwidth >= before
    for _ in range(3):
        known, choice = MEASURED.decide(known, choice, at_ease(125e6, choice), PEERS)
    assert choice == (3, 1)


def test_link_that_carries_a_thousandth_after_a_silence_is_tried_for_more_ever_later():
    """What it was before is no more: each time it is believed to be back, patience is doubled."""
    known, choice, high = Known(), Choice(3, 1), []
    known, choice = MEASURED.decide(known, choice, at_ease(125e6, choice), PEERS)
    silent = rates(0.0, 1.0, steps=0, blocked=1.0)
    for number in range(600):
        measured = world(2e6, choice) if choice.partitions > 20 else silent
        before = known.bandwidth
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
        if known.bandwidth > 4 * before:
            high.append(number)
    assert len(high) <= 8
    assert choice.partitions > 100


@pytest.mark.parametrize(("bandwidth", "right"), [(60e6, 6), (20e6, 17), (5e6, 67)])
@pytest.mark.parametrize("burst", [1, 2])
def test_slow_link_whose_acknowledgements_come_in_every_other_measurement_has_the_right_p(bandwidth, right, burst):
    known, choice, chosen, passing = Known(), Choice(3, 1), [], itertools.cycle([burst, 0])
    for _ in range(600):
        measured = world(bandwidth, choice)
        if measured.blocked_s:
            measured = rates(bandwidth * next(passing), 1.0, steps=measured.steps, blocked=2 * measured.blocked_s)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
        chosen.append(choice)
    assert set(chosen[300:]) == {(right, 1)}


@given(st.lists(st.booleans(), max_size=60))
def test_silence_between_full_measurements_costs_no_more_than_silence_by_itself(passes):
    """B is at least half of the 100 MB/s that pass where anything does, and a sixteenth of that where nothing does."""
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    for something in passes:
        measured = full(100e6, choice) if something else rates(0.0, 1.0, steps=0, blocked=1.0)
        known = MEASURED.learn(known, choice, measured, PEERS)
        assert known.bandwidth > 49e6 / 16


def test_link_that_is_silent_now_and_then_is_given_its_bandwidth_back_each_time_as_soon():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    before = known.bandwidth
    for _ in range(20):
        for measured in [rates(0.0, 1.0, steps=0, blocked=1.0)] * 3 + [at_ease(125e6, choice)] * 24:
            known = MEASURED.learn(known, choice, measured, PEERS)
        assert (known.bandwidth, known.before, known.patience) == (before, 0.0, 4)
