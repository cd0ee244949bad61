from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.node_context import NodeContext
from dataflow.operators_api import Sample
from dataflow.reports import Rates
from dataflow.testing.operator_harness import Harness
from operators.cost_model import Choice, CostModel
from operators.layout import Layout, Sharding
from operators.messages import Accumulated, Offer
from operators.partition import LivePartition, Partition, PartitionByOwner, Rotation, RotationState
from operators.window import Window


def node(index, size):
    return NodeContext(index=index, members={"worker": tuple(range(size))})


def fixed(partitions, every=1):
    return Rotation(receivers="worker", cost=CostModel(model_nbytes=1000, partitions=partitions, every=every))


def rotation(partitions, *, every=1, index=0, size=2):
    return fixed(partitions, every).create(node(index, size))


def begin(state):
    """Go on to the gradient that the next round begins with."""
    number = state.tensors()["rounds"][2]
    assert not state.begin(number - 1)
    assert state.begin(number)


def play(state, receiver, cells, rounds):
    """The cells offered to `receiver` in each round."""
    offered = []
    for _ in range(rounds):
        begin(state)
        offered.append([cell for run in state.turn(receiver, cells) for cell in range(*run)])
    return offered


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_turn_p_divides_the_cells_offers_partition_i_plus_j_plus_t(p):
    size, cells = 5, 12
    for sender in range(size):
        state = rotation(p, index=sender, size=size)
        for receiver in set(range(size)) - {sender}:
            for t, offered in enumerate(play(rotation(p, index=sender, size=size), receiver, cells, 2 * p)):
                partition = (receiver + sender + t) % p
                assert offered == list(range(partition * cells // p, (partition + 1) * cells // p))
        assert state.receivers == tuple(i for i in range(size) if i != sender)


@pytest.mark.parametrize("p", range(1, 8))
@pytest.mark.parametrize("cells", [7, 10, 256, 259])
def test_turn_any_p_successive_rounds_cover_every_cell_once(p, cells):
    offered = play(rotation(p, index=1, size=3), 2, cells, 3 * p)
    for first in range(2 * p):
        covered = Counter(cell for turn in offered[first : first + p] for cell in turn)
        assert covered == Counter(range(cells))


def test_turn_more_partitions_than_cells_covers_each_once_in_p_rounds():
    offered = play(rotation(10, index=1, size=3), 2, 4, 21)
    for first in range(1, 11):
        assert Counter(cell for turn in offered[first : first + 10] for cell in turn) == Counter(range(4))
    assert sum(not turn for turn in offered[1:11]) == 6


def test_turn_more_partitions_than_cells_reaches_every_receiver_in_the_first_round():
    state = rotation(1000, size=4)
    begin(state)
    assert all(list(state.turn(receiver, 4)) == [(0, 1)] for receiver in (1, 2, 3))
    begin(state)
    assert all(list(state.turn(receiver, 4)) == [] for receiver in (1, 2, 3))
    state.change(2000, 1)
    begin(state)
    assert all(list(state.turn(receiver, 4)) == [(0, 1)] for receiver in (1, 2, 3))


@pytest.mark.parametrize(("p", "cells"), [(3, 7), (3, 1), (8, 256)])
def test_turn_of_the_whole_model_comes_once_in_p_rounds_and_staggered(p, cells):
    cost = CostModel(model_nbytes=1000, partitions=p, every=1, in_turn=True)
    state = Rotation(receivers="worker", cost=cost).create(node(1, 4))
    begin(state)
    assert [list(state.turn(receiver, cells)) for receiver in state.receivers] == [[(0, cells)]] * 3
    rounds = []
    for _ in range(3 * p):
        begin(state)
        rounds.append([receiver for receiver in state.receivers if list(state.turn(receiver, cells)) == [(0, cells)]])
    assert max(map(len, rounds)) == 1
    for first in range(2 * p):
        assert sorted(receiver for due in rounds[first : first + p] for receiver in due) == [0, 2, 3]


def test_turn_wraps_around_in_two_parts():
    state = RotationState(Choice(2, 1), {1: Fraction(3, 4)}, CostModel(model_nbytes=1))
    begin(state)
    assert list(state.turn(1, 8)) == [(6, 8), (0, 2)]
    assert list(state.turn(1, 8)) == [(2, 6)]


choices = st.tuples(st.integers(1, 40), st.integers(1, 16))


@settings(deadline=None, max_examples=200)
@given(
    first=choices,
    changes=st.lists(st.tuples(st.integers(0, 40), choices), max_size=20),
    cells=st.integers(1, 50),
    same=st.booleans(),
)
def test_turn_p_and_r_changing_at_any_time_returns_to_every_cell_within_the_span_that_its_receiver_knows(
    first, changes, cells, same
):
    """What a node may be held back by: it must be let on to its next round by what it has sent until then."""
    every = first[1] if same else None
    state = rotation(first[0], every=first[1])
    due = {}
    number = 0
    for wait, (p, r) in changes:
        number += wait
        due[number] = (p, every or r)
    last, known = dict.fromkeys(range(cells), 0), first[0] * first[1]
    end = number + 2 * max(p * (every or r) for p, r in [first, *(choice for _, choice in changes)]) + 20
    longest = known
    for number in range(1, end + 1):
        assert all(number - 1 - seen < known for seen in last.values())  # gradient `number` may be made
        if number in due:
            state.change(*due[number])
        if not state.begin(number):
            continue
        for run in state.turn(1, cells):
            last.update(dict.fromkeys(range(*run), number))
            known = state.span
        longest = max(longest, state.span)
    if same:
        assert longest <= every * max(p for p, _ in [first, *due.values()])
    assert state.span == state.choice.span


def test_change_span_covers_the_old_turn_and_then_shrinks():
    state = rotation(6)
    state.change(2, 1)
    assert (state.choice, state.span) == ((2, 1), 6)
    for _ in range(2):
        begin(state)
        assert state.span == 6
    begin(state)
    assert state.span == 2


def test_change_of_the_round_counts_from_the_next_one_which_is_due_when_it_was():
    """Two turns of a cell are 32 gradients apart before, and after, and 47 in between: 16, and 31 rounds of 1."""
    state = rotation(2, every=16)
    assert [number for number in range(1, 40) if state.begin(number)] == [16, 32]
    state.change(32, 1)
    assert (state.choice.span, state.span) == (32, 48)
    assert [number for number in range(40, 52) if state.begin(number)] == [48, 49, 50, 51]


def test_change_to_what_is_chosen_already_changes_nothing():
    state = rotation(6, every=2)
    play(state, 1, 12, 8)
    before = {name: tensor.tolist() for name, tensor in state.tensors().items()}
    state.change(6, 2)
    assert {name: tensor.tolist() for name, tensor in state.tensors().items()} == before


def test_change_many_times_keeps_places_within_64_bits():
    state = rotation(1)
    for p in [*range(1, 120), *range(119, 0, -1)]:
        state.change(p, 1)
        begin(state)
        list(state.turn(1, 256))
        saved = state.tensors()  # raises OverflowError if a place outgrew int64
    other = rotation(1)
    other.restore(saved)
    assert play(other, 1, 256, 5) == play(state, 1, 256, 5)


def test_leave_receiver_is_offered_nothing_more():
    state = rotation(2, size=4)
    state.leave(2)
    state.leave(2)
    assert state.receivers == (1, 3)


def test_restore_goes_on_where_it_was():
    state = rotation(5, every=3, size=3)
    play(state, 1, 10, 3)
    state.change(4, 2)
    other = rotation(2, size=3)
    other.restore(state.tensors())
    assert (other.choice, other.span, other.snapshot()) == ((4, 2), 15 + 3, state.snapshot())
    assert not other.begin(11)
    assert play(other, 1, 10, 4) == play(state, 1, 10, 4)


def test_create_without_p_takes_what_40_megabits_carry_of_rounds_of_two():
    """200 gradients/s x 90,000 bytes x 4 peers = 72 MB/s, of which 4.5 MB/s pass: 16, over 2."""
    state = Rotation(receivers="worker", cost=CostModel(model_nbytes=90_000)).create(node(0, 5))
    assert state.choice == (8, 2)


def test_create_with_a_p_that_may_become_less_places_senders_as_far_apart_as_they_are_many():
    states = [Rotation(receivers="worker", cost=CostModel(model_nbytes=900_000)).create(node(i, 4)) for i in range(4)]
    assert {state.choice for state in states} == {(16, 2)}
    for receiver in range(4):
        places = [state.snapshot()[receiver] for i, state in enumerate(states) if i != receiver]
        assert places == [Fraction((i + receiver) % 4, 4) for i in range(4) if i != receiver]


def test_create_more_partitions_than_memory_could_list_places_the_receivers():
    state = rotation(10**15, index=1, size=3)
    assert state.receivers == (0, 2)
    assert play(state, 0, 10**15, 2) == [[1], [2]]


@pytest.mark.parametrize("wrong", [{"partitions": 0}, {"every": 0}])
def test_cost_model_refuses_zero(wrong):
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        CostModel(model_nbytes=1, **wrong)


def harness(p, every=1, cells=4, size=3, kind=Partition):
    layout = Layout(bounds=tuple(range(cells + 1)))
    states = {"rotation": fixed(p, every), "window": Window(layout=layout, receivers="worker")}
    return Harness(kind(layout=layout), node=node(0, size), states=states)


def test_partition_each_round_offers_every_receiver_its_turn():
    partition = harness(2)
    partition.send(Accumulated(1))
    partition.send(Accumulated(2))
    assert partition.emitted("offers") == [
        Offer(to=1, start=2, stop=4),
        Offer(to=2, start=0, stop=2),
        Offer(to=1, start=0, stop=2),
        Offer(to=2, start=2, stop=4),
    ]
    assert partition.states["window"].span == 2


def test_partition_every_three_gradients_offers_in_the_third_with_a_span_in_gradients():
    partition = harness(2, every=3, size=2)
    assert [len(partition.send(Accumulated(number))) for number in range(1, 7)] == [0, 0, 1, 0, 0, 1]
    assert partition.states["window"].span == 6


def test_live_partition_says_what_it_chose_and_what_it_sends_by_it():
    """A gradient is 10 ms of computing, a round 10 ms of exchanging: a tenth with 9, but 8 are the most."""
    partition = harness(2, every=None, kind=LivePartition)
    rates = Rates(seconds=1.0, steps=100, compute_s=1.0, exchange_s=0.5)
    assert partition.rates(rates)[:2] == [Sample("p", 2), Sample("every", 2)]
    partition.rates(rates)
    samples = {sample.name: sample.value for sample in partition.rates(rates)}
    assert samples == pytest.approx({"p": 2, "every": 8, "predicted_nbytes_s": 100 * 1000 * 2 / 16})


def test_live_partition_of_a_node_alone_says_nothing():
    partition = harness(2, every=None, size=1, kind=LivePartition)
    assert partition.rates(Rates(seconds=1.0, steps=100, compute_s=1.0)) == []


def test_partition_end_offers_everybody_everything():
    partition = harness(4)
    partition.send(Accumulated(1))
    partition.effects.clear()
    partition.end()
    assert partition.emitted("offers") == [Offer(1, 0, 4), Offer(2, 0, 4)]
    assert partition.states["window"].span == 4


def test_partition_by_owner_offers_each_server_its_run():
    sharding = Sharding(layout=Layout(bounds=(0, 1, 2, 3)))
    context = NodeContext(index=0, members={"worker": (0, 1), "server": (2, 3)})
    window = Window(layout=sharding.layout, receivers="server", sharding=sharding).create(context)
    partition = Harness(PartitionByOwner(sharding=sharding), node=context, states={"window": window})
    partition.send(Accumulated(1))
    assert partition.emitted("offers") == [Offer(2, 0, 2), Offer(3, 2, 3)]


def test_partition_by_owner_every_two_pushes_in_the_second_and_at_the_end():
    sharding = Sharding(layout=Layout(bounds=(0, 1)))
    context = NodeContext(index=0, members={"worker": (0,), "server": (1,)})
    window = Window(layout=sharding.layout, receivers="server", sharding=sharding).create(context)
    partition = Harness(PartitionByOwner(sharding=sharding, every=2), node=context, states={"window": window})
    assert [len(partition.send(Accumulated(number))) for number in (1, 2, 3)] == [0, 1, 0]
    assert len(partition.end()) == 1
