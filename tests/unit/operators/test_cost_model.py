"""What is chosen from measurements of a node that computes 100 gradients a second of a model of 1 MB, for 3 peers."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.reports import Rates
from operators.cost_model import Choice, CostModel
from operators.known import Known
from tests.unit.operators.measurements import GAMMA, MEASURED, PEERS, M, full, rates, run


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
