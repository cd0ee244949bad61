"""When a lower B is tried, where a node waits for others as if its link were slow, and what comes of it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.cost_model import Choice, CostModel
from operators.known import Known
from tests.unit.operators.measurements import GAMMA, MEASURED, PEERS, M, at_ease, full, rates, run


def in_step(bandwidth, choice):
    """What a node measures that waits for others' rounds for most of the time, which are as late as its own."""
    offered = GAMMA * M * PEERS / choice.span
    if offered <= bandwidth:
        return at_ease(bandwidth, choice)
    share = 0.7 * bandwidth / offered
    return rates(0.7 * bandwidth, 0.7, steps=round(50 * share), blocked=1 - share, delay=0.1)


@pytest.mark.parametrize(("bandwidth", "p"), [(40e6, 9), (12.5e6, 12), (2.5e6, 13)])
def test_link_of_nodes_that_wait_for_each_others_rounds_is_full_though_it_is_not_always_busy(bandwidth, p):
    """It carries a fraction of what it did, all wait for most of the time, and it is idle while they wait.

    p is what the link asks for, but not more than about four times what it was, which is 3.
    """
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    chosen = []
    for _ in range(100):
        known, choice = MEASURED.decide(known, choice, in_step(bandwidth, choice), PEERS)
        chosen.append(choice.partitions)
    assert chosen[8] > 3, "within five seconds"
    assert abs(chosen[-1] - p) <= 1
    assert chosen == sorted(chosen)
    assert known.trial is None


def test_receivers_in_turn_have_longer_rounds_where_nodes_wait_for_each_other():
    cost = CostModel(model_nbytes=M, in_turn=True)
    known, choice = Known(), Choice(3, 4)
    for _ in range(100):
        share = min(1.0, 12.5e6 * choice.every / (GAMMA * M * PEERS))
        busy = 0.7 if share < 1 else 0.9
        measured = rates(busy * 12.5e6, busy, steps=round(50 * share * busy / 0.9), blocked=1 - share)
        known, choice = cost.decide(known, choice, measured, PEERS)
    assert choice.every >= 9  # and 3 without a trial


def slow_peers(choice, *, pace, busy, passes=True):
    """What a node measures whose peers are slow: its pace is theirs, whatever it sends."""
    passed = pace * GAMMA * M * PEERS / choice.span if passes else 0.0
    return rates(passed, busy, steps=round(50 * pace), blocked=1 - pace, delay=0.03)


@pytest.mark.parametrize("pace", [0.04, 0.2, 0.5])
@pytest.mark.parametrize("busy", [0.5, 0.7, 0.89])
def test_slow_peers_are_taken_for_a_full_link_on_trial_only_and_ever_less_often(pace, busy):
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    before, chosen = (known.bandwidth, choice), []
    for _ in range(1500):
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=pace, busy=busy), PEERS)
        chosen.append(choice)
    assert before[1].partitions < max(chosen).partitions <= 4 * before[1].partitions
    begun = [number for number, (was, now) in enumerate(itertools.pairwise(chosen)) if now > was]
    assert len(begun) <= 8
    pauses = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert pauses == sorted(pauses)
    assert known.until_trial == 384
    for _ in range(12):  # of a trial, if there is one
        known, choice = MEASURED.decide(known, choice, at_ease(125e6, choice), PEERS)
    assert known.bandwidth >= before[0]
    assert choice == before[1]


paces = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 0.89), st.booleans(), st.integers(1, 60)), min_size=1, max_size=30
)


@given(paces)
def test_whatever_has_nothing_to_do_with_p_makes_it_four_times_as_much_at_most(happening):
    """A pace, a share of the time in which something waits, whether anything passes, and for how long."""
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    first = choice.partitions
    for pace, busy, passes, times in happening:
        for _ in range(times):
            goodput = min(1.0, busy) * known.bandwidth  # no more than B: what is more raises it
            passed = min(pace * GAMMA * M * PEERS / choice.span, goodput) if passes else 0.0
            steps = round(50 * pace)
            measured = rates(passed, busy, steps=steps, blocked=1 - steps / 50, delay=0.03)
            known, choice = MEASURED.decide(known, choice, measured, PEERS)
            assert choice.partitions <= 4 * first + 1


def on_trial(choice, *, pace=0.3, last=0.7):
    """A node whose peers are slow, in the first measurement of a trial; `last`: how busy it was in that one."""
    known = dataclasses.replace(run(MEASURED, Known(), choice, [125e6] * 20)[0], unfit=0)
    for busy in itertools.chain([0.7] * 5, itertools.repeat(last)):
        if known.trial:
            break
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=pace, busy=busy), PEERS)
    return known, choice


@pytest.mark.parametrize(("pace", "gains"), [(0.3, False), (0.38, False), (0.4, True), (0.9, True)])
def test_trial_is_in_vain_unless_the_node_is_a_third_faster(pace, gains):
    known, choice = on_trial(Choice(3, 1))
    for _ in range(10):
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=pace, busy=0.7), PEERS)
    assert known.trial is None
    assert (known.floor > 0) == gains
    assert (known.bandwidth < 125e6 - 1e3) == gains
    for _ in range(4):
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=pace, busy=0.3), PEERS)
    assert (choice == (3, 1)) != gains


def test_no_trial_doubts_what_distance_leaves_undoubted():
    """All that nodes far from each other send is always under way, and then for most of the time."""
    known, choice = Known(), Choice(2, 1)
    for number in range(60):
        passed = GAMMA / 3 * M * PEERS / choice.span
        measured = rates(passed, 1.0 if number < 10 else 0.7, steps=17, blocked=2 / 3, delay=0.1)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
        assert known.bandwidth >= known.proven / 2


def test_first_measurements_of_a_trial_do_not_count():
    known, choice = on_trial(Choice(3, 1))
    for number in range(10):
        pace = 1.0 if number < 3 else 0.33
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=pace, busy=0.7), PEERS)
    assert (known.trial, known.floor) == (None, 0.0)


@pytest.mark.parametrize("stay", [1, 9])
def test_trial_in_which_somebody_comes_or_leaves_says_nothing(stay):
    known, choice = on_trial(Choice(3, 1))
    until_trial = known.until_trial
    for peers in (*[PEERS] * stay, PEERS - 1):
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=0.9, busy=0.7), peers)
    assert (known.trial, known.floor, known.until_trial) == (None, 0.0, until_trial)
    assert known.bandwidth == pytest.approx(125e6)


def test_trial_without_gradients_ends_within_a_minute():
    known, choice = on_trial(Choice(3, 1))
    for _ in range(120):
        known, choice = MEASURED.decide(known, choice, rates(steps=0, blocked=1.0), PEERS)
    assert (known.trial, known.floor) == (None, 0.0)
    assert known.bandwidth == pytest.approx(125e6)


def test_gradients_of_seconds_have_trials_of_eight_at_least():
    """Of 4 s each; chance alone would make some trials gain that are shorter."""
    known, choice, before = Known(), Choice(2, 1), 0
    for number in range(600):
        steps = int(number % 8 == 7)
        known, choice = MEASURED.decide(known, choice, rates(1e6, 0.7, steps=steps, blocked=0.9), PEERS)
        if known.trial:
            assert known.trial.pace.steps >= 8
            before = known.trial.meanwhile.steps
        assert not known.floor
    assert before == 7  # with the eighth it ends


def test_trial_of_less_than_eight_gradients_is_in_vain_however_fast_they_come():
    """Of 15 s each before, and of 9 s in the trial."""
    known, choice, number = Known(), Choice(2, 1), 0
    while not known.floor and not (known.trial is None and known.until_trial > 6):
        steps, number = int(number % (18 if known.trial else 30) == 0), number + 1
        known, choice = MEASURED.decide(known, choice, rates(1e6, 0.7, steps=steps, blocked=0.9), PEERS)
    assert not known.floor


def test_link_that_was_full_before_a_trial_in_vain_is_believed_to_be_at_the_second_measurement_after_it():
    known, choice = on_trial(Choice(3, 1), last=0.95)
    before, number = known.trial.bandwidth, 0
    for number in range(12):
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=0.3, busy=0.95), PEERS)
        assert number < 9 or (known.trial, known.bandwidth == before) == (None, number < 11)


def test_one_measurement_without_doubts_does_not_undo_that_trials_were_in_vain():
    known, choice = on_trial(Choice(3, 1))
    while known.trial or known.until_trial < 96:
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=0.3, busy=0.7), PEERS)
    known, _ = MEASURED.decide(known, choice, at_ease(125e6, choice), PEERS)
    assert known.until_trial >= 48


def test_slow_link_is_found_as_soon_after_slow_peers_once_all_has_been_well():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    for _ in range(400):
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=0.3, busy=0.7), PEERS)
    assert known.until_trial > 90
    for _ in range(400):
        known, choice = MEASURED.decide(known, choice, at_ease(125e6, choice), PEERS)
    assert (choice, known.until_trial) == ((3, 1), 6)
    for _ in range(9):
        known, choice = MEASURED.decide(known, choice, in_step(12.5e6, choice), PEERS)
    assert choice.partitions > 10


def test_slow_link_is_found_again_after_it_has_been_well():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    for _ in range(3):
        assert choice.partitions <= 4
        for _ in range(20):
            known, choice = MEASURED.decide(known, choice, in_step(12.5e6, choice), PEERS)
        assert choice.partitions > 10
        for _ in range(60):
            known, choice = MEASURED.decide(known, choice, at_ease(125e6, choice), PEERS)


@pytest.mark.parametrize(
    ("pace", "passes", "busy", "blocked"),
    [
        (0.8, 0.8, 0.85, 0.2),  # it could not become a third faster
        (0.6, 0.3, 0.5, 0.35),  # for more than a tenth of the time it waits neither for its link nor for others
    ],
)
def test_nothing_is_tried_where_the_link_could_not_have_held_the_node_back(pace, passes, busy, blocked):
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    for _ in range(100):
        passed = passes * GAMMA * M * PEERS / choice.span
        measured = rates(passed, busy, steps=round(50 * pace), blocked=blocked, delay=0.03)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
        assert known.trial is None


@pytest.mark.parametrize(("every", "tries"), [(2, False), (3, True)])
def test_measurements_in_which_nothing_passes_undo_as_many_in_which_the_link_may_be_full(every, tries):
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    trials = []
    for number in range(18):
        measured = slow_peers(choice, pace=0.3, busy=0.7, passes=number % every > 0)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
        trials.append(known.trial)
    assert any(trials) == tries


def test_peers_that_stand_still_for_a_second_now_and_then_start_no_trial():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    for number in range(600):
        still = number % 20 < 2
        measured = slow_peers(choice, pace=0.1, busy=0.7) if still else at_ease(125e6, choice)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
        assert choice == (3, 1)


@pytest.mark.parametrize("fixed", [{"partitions": 3}, {"in_turn": True, "every": 3}])
def test_nothing_is_tried_where_what_it_would_change_is_given(fixed):
    cost = CostModel(model_nbytes=M, **fixed)
    known, (*_, choice) = run(cost, Known(), Choice(3, cost.every or 1), [125e6] * 20)
    for _ in range(20):
        known = cost.learn(known, choice, in_step(12.5e6, choice), PEERS)
        assert known.trial is None


@pytest.mark.parametrize("pace", [0.8, 0.85])
def test_link_that_becomes_slow_after_an_hour_with_slightly_slower_peers_is_found_as_soon(pace):
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    for _ in range(7200):
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=pace, busy=0.8), PEERS)
    for _ in range(13):
        known, choice = MEASURED.decide(known, choice, in_step(12.5e6, choice), PEERS)
    assert choice.partitions > 10


@pytest.mark.parametrize(("slow", "well"), [(6, 14), (8, 12), (12, 8)])
def test_peers_that_are_slow_again_and_again_make_p_four_times_as_much_at_most(slow, well):
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    for number in range(1000):
        still = number % (slow + well) < slow
        measured = slow_peers(choice, pace=0.3, busy=0.7) if still else at_ease(125e6, choice)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
        assert choice.partitions <= 12


def test_no_trial_believes_more_than_a_full_link_has_shown():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    for number in range(6):
        measured = in_step(6e6, choice) if number < 4 else full(6e6, choice)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
    assert known.bandwidth == pytest.approx(6e6, rel=0.01)


def test_pace_with_a_slow_peer_that_has_left_since_is_no_reason_for_a_trial():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    for _ in range(5):
        known, choice = MEASURED.decide(known, choice, slow_peers(choice, pace=0.3, busy=0.7), PEERS)
    for number in range(40):
        assert known.trial is None
        measured = slow_peers(choice, pace=0.3, busy=0.7) if number < 3 else at_ease(200e6, choice)
        known, choice = MEASURED.decide(known, choice, measured, PEERS - 1)


def test_silence_long_before_a_trial_does_not_undo_what_it_has_found():
    known, (*_, choice) = run(MEASURED, Known(), Choice(1, 1), [125e6] * 20)
    known = dataclasses.replace(known, patience=16)
    for number in range(40):
        measured = in_step(40e6, choice) if number else rates(0.0, 1.0, steps=0, blocked=1.0)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
    assert choice.partitions == 9
