from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.cost_model import CostModel
from operators.layout import Layout, Sharding
from operators.messages import Accumulated, Offer
from operators.partition import Partition, PartitionByOwner, Rotation, RotationState

COST = CostModel(gradients_per_s=100, model_nbytes=1000, bandwidth=100_000)


def node(index, size):
    return NodeContext(index=index, members={"worker": tuple(range(size))})


def rotation(partitions, *, index=0, size=2):
    return Rotation(partitions=partitions, receivers="worker", cost=COST).create(node(index, size))


def play(state, receiver, cells, rounds):
    """The cells offered to `receiver` in each round."""
    offered = []
    for _ in range(rounds):
        state.next_round()
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
    state.next_round()
    assert all(list(state.turn(receiver, 4)) == [(0, 1)] for receiver in (1, 2, 3))
    state.next_round()
    assert all(list(state.turn(receiver, 4)) == [] for receiver in (1, 2, 3))
    state.change(2000)
    state.next_round()
    assert all(list(state.turn(receiver, 4)) == [(0, 1)] for receiver in (1, 2, 3))


def test_turn_wraps_around_in_two_parts():
    state = RotationState(2, {1: Fraction(3, 4)})
    state.next_round()
    assert list(state.turn(1, 8)) == [(6, 8), (0, 2)]
    assert list(state.turn(1, 8)) == [(2, 6)]


@settings(deadline=None, max_examples=100)
@given(changes=st.lists(st.integers(1, 40), min_size=1, max_size=80), cells=st.integers(1, 50))
def test_turn_p_changing_at_any_time_returns_to_every_cell_within_span_rounds(changes, cells):
    """The span announced in a round holds from then on until p changes, and no cell waits longer than the largest."""
    state = rotation(changes[0])
    last = dict.fromkeys(range(cells), 0)
    longest = 0
    for t, p in enumerate(changes, start=1):
        if p != state.partitions:
            state.change(p)
        state.next_round()
        longest = max(longest, state.span)
        for run in state.turn(1, cells):
            last.update(dict.fromkeys(range(*run), t))
        assert all(t - seen < state.span for seen in last.values())
    for t in range(len(changes) + 1, len(changes) + 3 * longest + 2):
        state.next_round()
        for run in state.turn(1, cells):
            last.update(dict.fromkeys(range(*run), t))
        assert all(t - seen < state.span for seen in last.values())
    assert state.span == state.partitions == changes[-1]


def test_change_span_covers_the_old_turn_and_then_shrinks():
    state = rotation(6)
    state.change(2)
    assert (state.partitions, state.span) == (2, 6)
    for _ in range(6):
        state.next_round()
        assert state.span == 6
    state.next_round()
    assert state.span == 2


def test_change_many_times_keeps_places_within_64_bits():
    state = rotation(1)
    for p in [*range(1, 120), *range(119, 0, -1)]:
        state.change(p)
        state.next_round()
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
    state = rotation(5, size=3)
    play(state, 1, 10, 3)
    other = rotation(2, size=3)
    other.restore(state.tensors())
    assert (other.partitions, other.span, other.snapshot()) == (5, 5, state.snapshot())
    assert play(other, 1, 10, 4) == play(state, 1, 10, 4)


def test_create_without_p_asks_the_cost_model():
    assert rotation(None, size=5).partitions == 4  # 100 * 1000 * 4 / 100,000


def test_create_more_partitions_than_memory_could_list_places_the_receivers():
    state = rotation(10**15, index=1, size=3)
    assert state.receivers == (0, 2)
    assert play(state, 0, 10**15, 2) == [[1], [2]]


def test_create_refuses_zero_partitions():
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        Rotation(partitions=0, receivers="worker", cost=COST)


def harness(p, every=1, cells=4, size=3):
    layout = Layout(bounds=tuple(range(cells + 1)))
    states = {"rotation": Rotation(partitions=p, receivers="worker", cost=COST)}
    return Harness(Partition(layout=layout, every=every), node=node(0, size), states=states)


def test_partition_each_round_offers_every_receiver_its_turn():
    partition = harness(2)
    partition.send(Accumulated(1))
    partition.send(Accumulated(2))
    assert partition.emitted("offers") == [
        Offer(to=1, start=2, stop=4, span=2),
        Offer(to=2, start=0, stop=2, span=2),
        Offer(to=1, start=0, stop=2, span=2),
        Offer(to=2, start=2, stop=4, span=2),
    ]


def test_partition_every_three_gradients_offers_in_the_third_with_a_span_in_gradients():
    partition = harness(2, every=3, size=2)
    assert [len(partition.send(Accumulated(number))) for number in range(1, 7)] == [0, 0, 1, 0, 0, 1]
    assert {offer.span for offer in partition.emitted("offers")} == {6}


def test_partition_end_offers_everybody_everything():
    partition = harness(4)
    partition.send(Accumulated(1))
    partition.effects.clear()
    partition.end()
    assert partition.emitted("offers") == [Offer(1, 0, 4, 4), Offer(2, 0, 4, 4)]


def test_partition_by_owner_offers_each_server_its_run():
    sharding = Sharding(layout=Layout(bounds=(0, 1, 2, 3)))
    context = NodeContext(index=0, members={"worker": (0, 1), "server": (2, 3)})
    partition = Harness(PartitionByOwner(sharding=sharding), node=context)
    partition.send(Accumulated(1))
    assert partition.emitted("offers") == [Offer(2, 0, 2, 0), Offer(3, 2, 3, 0)]


def test_partition_by_owner_every_two_pushes_in_the_second_and_at_the_end():
    sharding = Sharding(layout=Layout(bounds=(0, 1)))
    context = NodeContext(index=0, members={"worker": (0,), "server": (1,)})
    partition = Harness(PartitionByOwner(sharding=sharding, every=2), node=context)
    assert [len(partition.send(Accumulated(number))) for number in (1, 2, 3)] == [0, 1, 0]
    assert len(partition.end()) == 1


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
    ],
)
def test_cost_model_p_is_gamma_m_n_minus_one_over_b_rounded_up(gamma, nbytes, nodes, bandwidth, p):
    cost = CostModel(gradients_per_s=gamma, model_nbytes=nbytes, bandwidth=bandwidth)
    assert cost.partitions(nodes) == p
