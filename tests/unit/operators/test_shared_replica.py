"""Replicas that are shared over a tree: pushes and pulls, messages in frames and codes, clocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ako_jobs.models import network
from dataflow.node_context import NodeContext
from dataflow.operators_api import Checkpoint
from dataflow.ports import Emission
from dataflow.testing.operator_harness import Harness
from operators.checkpointing import Checkpoints
from operators.compression import parse_codec
from operators.contribution import Contribution
from operators.layout import MAX_CELL, Layout
from operators.messages import Gradient
from operators.neighbours import Absorb, Push, PushMean, SendContributions
from operators.schedule import Schedule
from operators.share_clocks import ShareClocks, ShareClocksState
from operators.shared_replica import SharedReplica
from operators.shared_replica_state import Notice, SharedReplicaState
from operators.topology import Topology

WEIGHTS = 600_000
"""Three frames: a frame has `MAX_CELL` weights at most."""
LAYOUT = Layout.of(WEIGHTS, cells=5)


def states(size: int = 3, weights: int = WEIGHTS, **shared: Any) -> list[SharedReplicaState]:
    """Replicas of the nodes of a chain, that begin with ones."""
    layout = LAYOUT if weights == WEIGHTS else Layout.of(weights)
    element = SharedReplica(model=network("mlp", "digits", "uniform"), topology=Topology(), layout=layout, **shared)
    members = {"worker": tuple(range(size))}
    return [
        element.begin(np.ones(weights, np.float32), NodeContext(index=node, members=members)) for node in range(size)
    ]


def update(state: SharedReplicaState, value: float) -> None:
    state.descend(np.full(state.current.size, value, np.float32), 1.0, scale=True)


def messages(state: SharedReplicaState, to: int) -> list[Contribution]:
    return list(state.take(Notice(to, 0), 3))


def hand_over(source: SharedReplicaState, target: SharedReplicaState) -> None:
    for message in messages(source, target.sharing.node):
        told = target.arrive(message)
        if told is not None:
            target.sharing.absorb(source.sharing.node, told)


def test_own_updates_are_in_the_replica_at_once_and_others_with_a_pull() -> None:
    one, other, _ = states()
    update(one, 0.25)
    update(other, 0.5)
    hand_over(one, other)
    assert set(one.current.tolist()) == {0.75}
    assert set(other.current.tolist()) == {0.5}
    assert other.pull() == pytest.approx(0.25 * WEIGHTS**0.5)
    assert set(other.current.tolist()) == {0.25}


def test_sum_leaves_in_frames_the_last_of_which_has_the_counts() -> None:
    one, other, _ = states()
    update(one, 0.25)
    sent = messages(one, 1)
    assert MAX_CELL < WEIGHTS
    assert [(each.start, each.stop, each.last) for each in sent] == [(0, 2, False), (2, 4, False), (4, 5, True)]
    assert [each.counts.tolist() for each in sent] == [[], [], [1, 0, 0]]
    assert [other.arrive(each) is not None for each in sent] == [False, False, True]
    assert other.sharing.belief.counts.tolist() == [0, 0, 0]  # it has come, and is not absorbed


def test_updates_that_are_not_pushed_are_in_no_sum() -> None:
    one, *_ = states(every=3)
    update(one, 0.25)
    update(one, 0.25)
    assert (float(one.sharing.own.values[0]), one.sharing.own.counts.tolist()) == (0.0, [0, 0, 0])
    one.pull()
    assert float(one.current[0]) == 0.5
    one.push()
    assert (float(one.sharing.own.values[0]), one.sharing.own.counts.tolist()) == (-0.5, [2, 0, 0])
    one.pull()
    assert float(one.current[0]) == 0.5


def test_push_operator_pushes_every_third_gradient_and_at_the_end() -> None:
    state, *_ = states(every=3)
    harness = Harness(
        Push(every=3),
        node=NodeContext(members={"worker": (0, 1, 2)}),
        states={"replica": state, "clocks": ShareClocks()},
    )
    pushed = []
    for number in range(1, 6):
        update(state, 1.0)
        harness.send(Gradient(number, np.zeros(WEIGHTS, np.float32), 1))
        pushed.append(int(state.sharing.own.counts[0]))
    assert pushed == [0, 0, 3, 3, 3]
    assert harness.emitted("notices") == [Notice(1, 0)]
    harness.end()
    assert int(state.sharing.own.counts[0]) == 5
    assert state.sharing.ended


def test_coded_sums_leave_mirror_and_shadow_alike_and_the_rest_is_sent_later() -> None:
    one, other, _ = states(weights=512, codec=parse_codec("topk:density=0.25"))
    rng = np.random.default_rng(3)
    for number in range(5):
        one.descend(rng.normal(size=512).astype(np.float32), 1.0, scale=True)
        sent = messages(one, 1)
        assert sent[0].values.dtype == (np.uint8 if number else np.float32)
        for each in sent:
            told = other.arrive(each)
            assert told is not None
            other.sharing.absorb(0, told)
        hand_over(other, one)  # that it has come
        np.testing.assert_array_equal(other.sharing.sides[0].total.values, one.messages.codes[1].shadow)
    assert np.abs(one.sharing.own.values - one.messages.codes[1].shadow).max() > 0.1
    one.sharing.end()
    hand_over(one, other)
    np.testing.assert_array_equal(other.sharing.sides[0].total.values, one.sharing.own.values)


def test_samples_are_of_the_codes_to_all_neighbours() -> None:
    ends, middle = [0, 2], states(weights=512, codec=parse_codec("topk:density=0.25"))[1]
    rng = np.random.default_rng(3)
    for _ in range(2):  # the first sums are whole
        middle.descend(rng.normal(size=512).astype(np.float32), 1.0, scale=True)
        for end in ends:
            messages(middle, end)
            middle.sharing.sides[end].acknowledged = middle.sharing.sides[end].sent
    middle.descend(rng.normal(size=512).astype(np.float32), 1.0, scale=True)
    nbytes = sum(each.values.nbytes for each in messages(middle, 0))
    before = [codes.residual.account.nbytes for codes in middle.messages.codes.values()]
    assert sum(before) > nbytes > 0
    found = {sample.name: sample.value for sample in middle.messages.samples()}
    assert found["compression_ratio"] == 3 * 4 * 512 / sum(before)
    assert found["updates_per_message"] == 128
    owed = [np.linalg.norm(codes.residual.values) for codes in middle.messages.codes.values()]
    assert found["residual_norm"] == pytest.approx(np.hypot(*owed))


def test_new_neighbour_with_a_codec_makes_the_mirror_its_own_with_its_first_sum() -> None:
    """The node at the end has come to the middle; that has the mirror of the one whose place it has taken."""
    one, middle, new = states(weights=512, codec=parse_codec("topk:density=0.25"))
    update(one, 0.25)
    hand_over(one, middle)
    for state, other in ((middle, 2), (new, 1)):
        state.sharing.meet(other, (other,), epoch=2, instead_of=0 if state is middle else None)
        state._meet([other])
    for value in (1.0, 2.0, 3.0):
        update(new, value)
        hand_over(new, middle)
        new.sharing.sides[1].acknowledged = middle.sharing.sides[2].received
        np.testing.assert_array_equal(middle.sharing.sides[2].total.values, new.messages.codes[1].shadow)


def test_sums_of_a_period_wait_as_they_were_made() -> None:
    one, *_ = states(flow="period", weights=512)
    notices = []
    for _ in range(3):
        update(one, 1.0)
        assert not list(one.react(ShareClocksState()))
        notices += one.tick()
    assert notices == [Notice(1, 1), Notice(1, 2), Notice(1, 3)]
    assert not list(one.tick())  # nothing has changed
    sent = [next(one.take(notice, 3)) for notice in notices]
    assert [float(each.values[0]) for each in sent] == [-1.0, -2.0, -3.0]


def test_rounds_are_told_once_complete_and_pulled_once_all_is_there() -> None:
    middle = states(weights=512, consistency="bsp")[1]
    clocks = ShareClocks(waits=True).create(NodeContext())
    harness = Harness(
        PushMean(schedule=Schedule(lr=0.5)),
        node=NodeContext(index=1, members={"worker": (0, 1, 2)}),
        states={"replica": middle, "clocks": clocks},
    )
    absorb = Harness(Absorb(), node=harness.node, states={"replica": middle, "clocks": clocks})
    ends = states(weights=512, consistency="bsp")
    harness.send(Gradient(1, np.full(512, 6.0, np.float32), 1))
    assert harness.emitted("notices") == []  # neither neighbour has been heard
    for node in (0, 2):
        ends[node].sharing.add(np.full(512, -1.0, np.float32))
        told = Notice(*ends[node].turns.queue(1))
        for message in ends[node].take(told, 3):
            absorb.send(message)
    assert absorb.emitted("notices") == [Notice(2, 1), Notice(0, 1)]
    assert float(middle.current[0]) == 1 - 6.0 * 0.5 / 3 - 2
    assert clocks.slowest() == 1


def test_absorb_keeps_a_node_that_makes_no_more_gradients_as_it_hears_of_others() -> None:
    one, other, _ = states(weights=512)
    every = Checkpoints(images=3, batch=1, at_pace=True)  # every gradient of each of three
    absorb = Harness(
        Absorb(checkpoints=every),
        node=NodeContext(index=1, members={"worker": (0, 1, 2)}),
        states={"replica": other, "clocks": ShareClocks()},
    )
    clocks = absorb.states["clocks"]
    kept = []
    for number in range(1, 7):
        clocks.over = number > 3
        one.sharing.add(np.full(512, -1.0, np.float32))
        for message in one.take(Notice(*one.turns.queue(1)), 3):
            kept += [each for each in absorb.send(message) if isinstance(each, Checkpoint)]
    assert kept == [Checkpoint(1, steps=0), Checkpoint(2, steps=0)]  # of 4 and 6 gradients, all of one node


@pytest.mark.parametrize(
    ("consistency", "bound"), [("ssp", 2), ("assp", 3 - 5), ("eventual", ShareClocksState().bound)]
)
def test_clocks_let_a_node_go_on_as_far_as_is_known_of_others(consistency: str, bound: int) -> None:
    """Of the two others 4 and 2 updates are known, 3 and 5 in their models; 5 of theirs are in this one's."""
    state = states(consistency=consistency)[0]
    state.sharing.known[:, 1:] = [[4, 2], [3, 5]]
    state.sharing.counts = np.array([7, 4, 1])
    clocks = ShareClocksState()
    clocks.made = 7
    clocks.follow(state.sharing, state._consistency, 0)
    assert clocks.slowest() == bound
    assert clocks.lag() == 6


def test_clocks_that_go_on_take_others_to_be_as_far_until_they_have_spoken() -> None:
    state = states(consistency="eventual")[0]
    clocks = ShareClocksState()
    clocks.resume({}, 0, {0: 40, 1: 41, 2: 39})
    clocks.follow(state.sharing, state._consistency, 0)
    assert clocks.lag() == 0
    state.sharing.counts = np.array([45, 44, 42])
    clocks.made = 45
    clocks.follow(state.sharing, state._consistency, 0)
    assert clocks.lag() == clocks.snapshot().lag() == 3


def test_tell_sends_nothing_to_who_has_been_told() -> None:
    state, *_ = states(weights=512)
    harness = Harness(SendContributions(), node=NodeContext(members={"worker": (0, 1, 2)}), states={"replica": state})
    assert harness.send(Notice(1, 0)) == []
    update(state, 1.0)
    (sent,) = [each for each in harness.send(Notice(1, 0)) if isinstance(each, Emission)]
    assert sent.to == 1
    assert harness.send(Notice(1, 0)) == []


def test_restored_replica_has_its_x_and_counts_again() -> None:
    state, *_ = states(weights=512)
    update(state, 0.5)
    update(state, 0.5)
    kept = {name: tensor.copy() for name, tensor in state.tensors().items()}
    again, *_ = states(weights=512)
    again.restore(kept)
    np.testing.assert_array_equal(again.current, state.current)
    np.testing.assert_array_equal(again.sharing.own.values, np.full(512, -1.0))
    assert again.sharing.own.counts.tolist() == [2, 0, 0]
    sums = [each.sharing.sum_for(1).total for each in (state, again)]
    for one, other in pairwise(sums):
        assert one is not None
        assert other is not None
        np.testing.assert_array_equal(one.values, other.values)


def test_taus_of_edges_go_on_after_a_checkpoint() -> None:
    codec = parse_codec("threshold:density=0.1")
    one, middle, _ = states(weights=512, codec=codec)
    assert not any(name.startswith("taus") for name in middle.tensors())
    rng = np.random.default_rng(3)
    for state, to in ((one, 1), (middle, 2)):
        for _ in range(2):  # the first sum is sent whole
            state.descend(rng.normal(size=512).astype(np.float32), 1.0, scale=True)
            list(state.messages.cut(to, state.sharing.sum_for(to), 1, 3))
    kept = middle.kept()
    assert [name for name in kept if name.startswith("taus")] == ["taus/2"]
    _, again, _ = states(weights=512, codec=codec)
    again.resume(kept, 1, {1: 1})
    assert again.kept()["taus/2"].tolist() == kept["taus/2"].tolist()
    assert kept["taus/2"] > 0
    _, other, _ = states(weights=512, codec=parse_codec("threshold:density=0.1:per_layer=true"), layers=(0, 100))
    other.resume(kept, 1, {1: 1})  # it has one tau for each layer, and finds them anew
    assert not any(name.startswith("taus") for name in other.tensors())


def test_sum_in_a_code_of_few_bytes_leaves_in_one_message_and_the_first_and_last_whole_in_frames() -> None:
    one, *_ = states(codec=parse_codec("topk:density=0.01"))
    update(one, 0.25)
    assert len(messages(one, 1)) == 3
    one.sharing.sides[1].acknowledged = 1
    update(one, 0.25)
    (sent,) = messages(one, 1)
    assert (sent.start, sent.stop, sent.last) == (0, LAYOUT.cells, True)
    one.sharing.sides[1].acknowledged = 2
    one.sharing.end()
    assert len(messages(one, 1)) == 3
