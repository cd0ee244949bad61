"""What is chosen from measurements of a node that computes 100 gradients a second of a model of 1 MB, for 3 peers."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.reports import LinkRates, Rates
from operators.cost_model import Choice, CostModel
from operators.known import Known

M, GAMMA, PEERS = 1_000_000, 100, 3
MEASURED = CostModel(model_nbytes=M)


def rates(passed=0.0, busy=0.0, *, steps=50, blocked=0.0, exchange=0.0, delay=0.002, seconds=0.5):
    """A measurement: `passed`, `busy` and `blocked` for each second."""
    link = LinkRates(int(passed * seconds / PEERS), busy * seconds, delay if passed else 0.0)
    return Rates(
        seconds=seconds,
        steps=steps,
        compute_s=0.01 * steps,
        exchange_s=exchange,
        busy_s=busy * seconds,
        blocked_s=blocked * seconds,
        links=dict.fromkeys(range(1, PEERS + 1), link),
    )


def full(bandwidth, choice, *, delay=0.1):
    """What a node measures whose link carries `bandwidth`, and that waits for it for most of the time."""
    share = bandwidth * choice.span / (GAMMA * M * PEERS)
    return rates(bandwidth, 1.0, steps=round(50 * share), blocked=1 - share, delay=delay)


def at_ease(bandwidth, choice, *, delay=0.002):
    """What it measures if the link carries all that is offered."""
    offered = GAMMA * M * PEERS / choice.span
    assert offered <= bandwidth
    return rates(offered, offered / bandwidth, delay=delay)


def world(bandwidth, choice):
    return (at_ease if GAMMA * M * PEERS / choice.span <= bandwidth else full)(bandwidth, choice)


def run(cost, known, choice, bandwidths):
    """The choices after each measurement, on a link that carries these."""
    chosen = []
    for bandwidth in bandwidths:
        known, choice = cost.decide(known, choice, world(bandwidth, choice), PEERS)
        chosen.append(choice)
    return known, chosen


@pytest.mark.parametrize(
    ("gamma", "nbytes", "nodes", "bandwidth", "p"),
    [
        (80, 238_360, 1, 125e6, 1),  # nobody to send to
        (80, 238_360, 2, 125e6, 1),  # 0.15
        (80, 238_360, 64, 125e6, 10),  # 9.6
        (500, 238_360, 4, 12.5e6, 29),  # 28.6
        (2, 1_000_000, 5, 8_000_000, 1),  # exactly 1
        (2, 1_000_000, 5, 4_000_000, 2),  # exactly 2
        (2, 1_000_001, 5, 4_000_000, 3),  # a byte more than 2
        (500, 1_000_000, 3, 1, 256),  # no partition is less than a cell
    ],
)
def test_p_is_gamma_m_n_minus_one_over_b_rounded_up(gamma, nbytes, nodes, bandwidth, p):
    load = CostModel(model_nbytes=nbytes, bandwidth=bandwidth, every=1).load(gamma, nodes - 1)
    assert load == pytest.approx(gamma * nbytes * (nodes - 1) / bandwidth)
    assert CostModel(model_nbytes=nbytes, bandwidth=bandwidth, every=1).best(load, 0.0, PEERS) == (p, 1)


@pytest.mark.parametrize(
    ("load", "work", "choice"),
    [
        (0.4, 0.2, (1, 1)),
        (7.2, 0.2, (8, 1)),
        (17.0, 2.1, (6, 3)),  # 5.7 partitions
        (7.2, 4.0, (4, 4)),
        (0.4, 2.0, (4, 2)),  # of several gradients, no two nodes send one the same range at once
        (7.2, 99, (4, 8)),  # 32 gradients until every cell is sent again, and no more than 8 in a round
        (33.0, 99, (5, 8)),
        (100.0, 99, (13, 8)),
        (5000.0, 99, (256, 8)),
    ],
)
def test_best_is_the_shortest_round_that_the_processor_bears_within_a_sane_span(load, work, choice):
    assert MEASURED.best(load, work, PEERS) == choice


@pytest.mark.parametrize(
    ("nodes", "load", "choice"),
    [
        (2, 0.4, (2, 8)),
        (3, 0.4, (3, 8)),
        (4, 0.4, (4, 8)),
        (5, 0.4, (5, 5)),  # 5 x 5 x 5 nodes are 125, 6 x 5 x 5 are more than 128
        (6, 0.4, (6, 3)),
        (7, 0.4, (7, 2)),
        (8, 0.4, (8, 2)),
        (9, 0.4, (9, 1)),  # 9 x 2 are more than 16
        (16, 0.4, (16, 1)),
        (60, 0.4, (16, 1)),
        (16, 30.0, (16, 2)),  # the link asks for more than 16
        (8, 17.0, (9, 2)),  # with 3 they would be 8 x 3: more than 1.25 x 17
        (8, 20.0, (8, 3)),
        (8, 30.0, (8, 4)),  # 8 x 5 is more than 1.25 x 30
        (60, 100.0, (16, 7)),  # 16 x 8 is more than 1.25 x 100
    ],
)
def test_best_of_more_nodes_has_shorter_rounds_of_more_partitions(nodes, load, choice):
    assert MEASURED.best(load, 99, nodes - 1) == choice


def test_best_has_no_more_partitions_than_cells():
    assert CostModel(model_nbytes=M, cells=3).best(0.4, 99, 7) == (3, 5)


@pytest.mark.parametrize(
    ("every", "nodes", "p"),
    [(1, 8, 1), (2, 8, 8), (4, 8, 4), (8, 4, 4), (8, 3, 3), (4, 3, 3), (8, 8, 2), (16, 8, 2), (1, 99, 1), (2, 9, 8)],
)
def test_best_with_rounds_of_a_given_length_keeps_the_span_sane(every, nodes, p):
    assert CostModel(model_nbytes=M, every=every).best(0.4, 99, nodes - 1) == (p, every)


@pytest.mark.parametrize("peers", [1, 3, 5, 7, 8, 15, 31])
@pytest.mark.parametrize("message_s", [0.0, 0.00002, 0.0001, 0.0005])
@pytest.mark.parametrize("whole_s", [0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.01])
def test_choice_settles_where_rounds_cost_by_message_and_by_byte(peers, message_s, whole_s):
    """A message costs either end `message_s`, and `whole_s` for the model's bytes, of which it has a p-th."""
    cost = CostModel(model_nbytes=M, bandwidth=1e12)
    known, choice = Known(), cost.first(peers)
    chosen = []
    for _ in range(200):
        round_s = 2 * peers * (message_s + whole_s / choice.partitions)
        measured = rates(1e6, 0.0, exchange=50 / choice.every * round_s)
        known, choice = cost.decide(known, choice, measured, peers)
        chosen.append(choice)
    assert len(set(chosen[100:])) == 1


@given(load=st.floats(0, 2000), work=st.floats(0, 40), peers=st.integers(1, 100))
def test_best_keeps_below_the_bandwidth_and_fits_itself(load, work, peers):
    best = MEASURED.best(load, work, peers)
    assert best.partitions == 256 or best.span >= load - 1e-6
    assert best.span <= max(16, 128 / (peers + 1), 1.25 * load) or best.every == 1
    assert best.partitions >= min(16, peers + 1) or (best.every == 1 and peers < 8)
    assert MEASURED.fits(best, load, work, peers)


@pytest.mark.parametrize(("fixed", "best"), [({"partitions": 3}, (3, 8)), ({"every": 2}, (10, 2))])
def test_best_leaves_what_is_fixed(fixed, best):
    assert CostModel(model_nbytes=M, **fixed).best(20.0, 99, PEERS) == best


def test_first_assumes_40_megabits_200_gradients_a_second_and_rounds_of_two():
    assert CostModel(model_nbytes=150_000).first(PEERS) == (10, 2)  # 90 MB/s of 4.5 MB/s: 20, over 2
    assert CostModel(model_nbytes=9_000_000, bandwidth=27e6).first(PEERS) == (100, 2)
    assert CostModel(model_nbytes=9_000_000, partitions=5).first(PEERS) == (5, 2)
    assert CostModel(model_nbytes=9_000_000, partitions=5, every=1).first(PEERS) == (5, 1)


def test_first_has_the_longest_span_at_most_unless_a_gigabit_asks_for_more():
    assert CostModel(model_nbytes=900_000).first(PEERS) == (16, 2)  # 120 at 40 Mbit/s, 4.8 at 1 Gbit/s
    assert CostModel(model_nbytes=900_000).first(15) == (24, 1)  # 24 at 1 Gbit/s
    assert CostModel(model_nbytes=100_000).first(15) == (16, 1)
    assert CostModel(model_nbytes=9_000_000).first(PEERS) == (24, 2)  # 5.4 GB/s of 112.5 MB/s: 48, over 2


@pytest.mark.parametrize("bandwidth", [None, 1e6])
def test_first_round_in_turn_is_no_longer_than_others_wait_for(bandwidth):
    """At the start all know the span of one node alone; see `ako_jobs.ako`."""
    cost = CostModel(model_nbytes=60_000_000, in_turn=True, bandwidth=bandwidth)
    for peers in (1, 3, 15, 63):
        assert cost.first(peers).every <= cost.first(0).span
    assert CostModel(model_nbytes=60_000_000, in_turn=True, every=5).first(PEERS).every == 5


def test_work_is_nine_times_what_a_round_costs_for_each_gradient():
    known, _ = MEASURED.decide(Known(), Choice(1, 5), rates(exchange=0.04), PEERS)
    assert known.every == pytest.approx(9 * 0.004 / 0.01)  # 10 rounds cost 40 ms; a gradient 10 ms


def test_full_link_says_what_it_carries_and_p_follows_within_two_measurements():
    """300 MB/s are offered, over r; 30 pass, and 27 of them are used: 11.1 partitions."""
    known, chosen = run(MEASURED, Known(), Choice(1, 1), [30e6] * 2)
    assert known.bandwidth == pytest.approx(30e6, rel=0.01)
    assert chosen == [(1, 1), (12, 1)]


def test_gamma_of_a_node_that_waits_for_its_link_is_that_of_one_that_does_not():
    known, _ = run(MEASURED, Known(), Choice(1, 1), [30e6])
    assert full(30e6, Choice(1, 1)).steps == 5
    assert known.gradients_per_s == pytest.approx(GAMMA, rel=0.01)


@pytest.mark.parametrize(("bandwidth", "p"), [(125e6, 3), (12.5e6, 27), (2.5e6, 134)])
def test_choice_settles_at_the_formula_of_the_measured_bandwidth_and_stays(bandwidth, p):
    assert p == math.ceil(GAMMA * M * PEERS / (0.9 * bandwidth))
    known, chosen = run(MEASURED, Known(), Choice(4, 2), [bandwidth] * 60)
    assert abs(chosen[-1].partitions - p) <= 1
    assert chosen[-1].every == 1
    assert len(set(chosen[8:])) == 1
    assert known.patience == 4


@pytest.mark.parametrize("bandwidth", [125e6, 12.5e6, 2.5e6])
def test_choice_settles_within_five_measurements_of_the_first_one_and_stays(bandwidth):
    load = GAMMA * M * PEERS / (0.9 * bandwidth)
    known, chosen = run(MEASURED, Known(), MEASURED.first(PEERS), [bandwidth] * 60)
    assert 0.95 * load <= chosen[-1].partitions <= math.ceil(load)  # 5% less load would ask for as many
    assert chosen[-1].every == 1
    assert len(set(chosen[4:])) == 1
    assert known.patience == 4


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


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ({"bandwidth": 150e6}, 2),  # p is half of what it should be
        ({"bandwidth": 215e6}, 3),
        ({"bandwidth": 150e6, "partitions": 1}, 3),
    ],
)
def test_choice_that_does_not_fit_is_kept_for_three_measurements_or_two_if_p_is_far_too_small(given, after):
    cost, known, choice, number = CostModel(model_nbytes=M, **given), Known(), Choice(1, 1), 0
    while choice == (1, 1):
        number += 1
        known, choice = cost.decide(known, choice, rates(1e6, 0.1, exchange=0.2), PEERS)
    assert number == after


def test_choice_for_a_link_that_has_been_full_for_longer_does_not_fit_for_three_measurements():
    known, choice, chosen = Known(), Choice(3, 1), []
    for _ in range(4):
        known = MEASURED.learn(known, choice, full(85e6, choice), PEERS)
    for _ in range(3):
        known, after = MEASURED.decide(known, choice, full(85e6, choice), PEERS)
        chosen.append(after)
    assert chosen == [(3, 1), (3, 1), (4, 1)]


def test_given_bandwidth_is_taken_as_it_is():
    cost = CostModel(model_nbytes=M, bandwidth=30e6)
    _, chosen = run(cost, Known(), cost.first(PEERS), [125e6] * 12)
    assert chosen[-1] == (10, 1)


def test_choice_of_a_node_whose_pace_and_work_waver_does_not_flap():
    draw = itertools.cycle([46, 53, 49, 55, 44, 51, 54, 47])
    known, choice, chosen = Known(), Choice(3, 4), []
    for number in range(200):
        steps = next(draw)
        offered = 2 * steps * M * PEERS / choice.span
        exchange = 0.004 * (1 + 0.2 * math.sin(number)) * steps / choice.every
        measured = rates(offered, offered / 30e6, steps=steps, exchange=exchange)
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
        chosen.append(choice)
    assert len(set(chosen[20:])) == 1
    assert chosen[-1].every in (3, 4, 5)


@pytest.mark.parametrize("measured", [rates(steps=0), Rates(seconds=0.5), rates(30e6, 1.0, steps=0, blocked=1.0)])
def test_choice_of_a_node_that_has_made_no_gradient_yet_stays(measured):
    known, choice = Known(), Choice(1, 4)
    for _ in range(10):
        known, choice = MEASURED.decide(known, choice, measured, PEERS)
    assert choice == (1, 4)


def test_choice_of_a_node_without_peers_stays():
    known, choice = Known(), Choice(1, 4)
    for _ in range(10):
        known, choice = MEASURED.decide(known, choice, rates(), 0)
    assert choice == (1, 4)


def test_gamma_of_gradients_longer_than_a_measurement_is_one_over_their_time():
    known = Known()
    for number in range(60):
        known = MEASURED.learn(known, Choice(1, 4), rates(steps=int(number % 6 == 5)), PEERS)
    assert known.gradients_per_s == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("peers", "first", "chosen"),
    [
        (1, (1, 2), (1, 8)),  # the longest round
        (3, (3, 2), (3, 5)),  # one receiver a round, and 16 gradients until each has had its turn
        (7, (7, 2), (7, 2)),
        (40, (16, 2), (16, 1)),  # more receivers than gradients in a turn: two or three a round
    ],
)
def test_receivers_in_turn_have_the_longest_round_that_keeps_the_turn_short(peers, first, chosen):
    cost = CostModel(model_nbytes=1000, in_turn=True)
    assert cost.first(peers) == Choice(*first)
    known, choice = Known(), cost.first(peers)
    for _ in range(10):
        # A round takes as long as 10 gradients, and more than nine tenths of all time is to be theirs.
        rounds = 50 / choice.every
        known, choice = cost.decide(known, choice, rates(1000, 0.01, exchange=0.1 * rounds), peers)
    assert choice == Choice(*chosen)


def test_receivers_in_turn_have_longer_rounds_if_the_link_asks_for_it():
    cost, carried = CostModel(model_nbytes=M, in_turn=True), 10_000_000
    known, choice = Known(), cost.first(PEERS)
    for _ in range(20):
        share = min(1.0, carried * choice.every / (GAMMA * M * PEERS))
        passed, busy = (carried, 1.0) if share < 1 else (GAMMA * M * PEERS / choice.every, 0.9)
        measured = rates(passed, busy, steps=round(50 * share), blocked=1 - share)
        known, choice = cost.decide(known, choice, measured, PEERS)
    assert choice.partitions == PEERS
    assert 34 <= choice.every <= 37  # 100 x 1 MB x 3 / (0.9 x 10 MB/s) = 33.3, and a tenth more than fits
    assert cost.nbytes_s(known, choice, PEERS) == pytest.approx(GAMMA * M * PEERS / choice.every, rel=0.02)


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
