import itertools
import math

import numpy as np
import pytest
from pydantic import ValidationError

from dataflow.node_context import NodeContext
from dataflow.operators_api import Sample
from dataflow.testing.operator_harness import Harness
from operators.divergence import Divergence, ReplicaSample, SampleReplica, Samples
from operators.messages import Progress
from operators.vector_state import VectorState


def sampler(replica, *, index=0, **fields):
    node = NodeContext(index=index, members={"worker": (0, 1, 2)})
    return Harness(SampleReplica(**fields), node=node, states={"replica": VectorState(replica)})


def progress(step, *, final=False):
    return Progress(step=step, images=16 * step, epoch=0.5, loss=0.5, final=final)


def divergence(nodes):
    node = NodeContext(index=nodes[0], members={"worker": nodes})
    return Harness(Divergence(), node=node, states={"waiting": Samples()})


def sample(origin, values, *, turn=1, final=False):
    return ReplicaSample(origin, turn, final, np.array(values, np.float32))


def measured(effects):
    """``max`` and ``rms`` by turns."""
    assert [(effect.name, type(effect)) for effect in effects] == [("max", Sample), ("rms", Sample)] * (
        len(effects) // 2
    )
    return [(first.value, second.value) for first, second in zip(effects[::2], effects[1::2], strict=True)]


@pytest.mark.parametrize(
    ("n_weights", "at_most", "places"),
    [
        (10, 4, [0, 3, 6, 9]),
        (9, 4, [0, 3, 6]),  # never more than at_most: every second would be five
        (8, 4, [0, 2, 4, 6]),
        (5, 4, [0, 2, 4]),
        (4, 4, [0, 1, 2, 3]),
        (3, 4, [0, 1, 2]),
        (7, 1, [0]),
    ],
)
def test_sample_replica_takes_evenly_spaced_weights(n_weights, at_most, places):
    harness = sampler(np.arange(n_weights, dtype=np.float32) / 2, weights=at_most)
    harness.send(progress(3))
    (message,) = harness.emitted("samples")
    assert (message.values * 2).tolist() == places
    assert message.values.dtype == np.float32


@pytest.mark.parametrize(("every", "turns"), [("epoch", [0, 1, 3]), (40, [1, 2, 7]), ("end", [0, 0, 0])])
def test_sample_replica_says_whose_weights_and_of_which_turn_however_many_steps_the_node_made(every, turns):
    harness = sampler(np.zeros(2, np.float32), index=2, every=every)
    for step, images, epoch in ((9, 79, 0.9), (3, 80, 1.0), (4, 300, 3.1)):
        harness.send(Progress(step, images, epoch, loss=0.5))
    harness.send(progress(8, final=True))
    said = [(message.origin, message.turn, message.final) for message in harness.emitted("samples")]
    assert said == [*((2, turn, False) for turn in turns), (2, 0, True)]  # nodes end after different numbers of turns


def test_sample_replica_stays_as_it_was_taken():
    harness = sampler(np.array([1, 2], np.float32))
    harness.send(progress(1))
    harness.states["replica"].values[:] = 7
    assert harness.emitted("samples")[0].values.tolist() == [1, 2]


def test_sample_replica_of_no_weights_is_refused():
    with pytest.raises(ValidationError):
        SampleReplica(weights=0)


def test_divergence_of_two_nodes_worked_out():
    harness = divergence((0, 1))
    assert harness.send(sample(0, [1, 2, 3])) == []
    # Mean (2, 2, 5), distances of 1, 0 and 2 on both sides: squares 1 + 0 + 4, twice, over 6.
    assert measured(harness.send(sample(1, [3, 2, 7]))) == [(2.0, pytest.approx(math.sqrt(5 / 3)))]


@pytest.mark.parametrize("order", list(itertools.permutations((2, 5, 9))))
def test_divergence_of_three_nodes_worked_out_in_any_order(order):
    harness = divergence((2, 5, 9))
    values = {2: [0, 4], 5: [3, 4], 9: [9, 1]}
    *early, last = order
    for origin in early:
        assert harness.send(sample(origin, values[origin])) == []
    # Means 4 and 3: distances -4, -1, 5 and 1, 1, -2; squares 16 + 1 + 25 + 1 + 1 + 4 = 48, over 6.
    assert measured(harness.send(sample(last, values[last]))) == [(5.0, pytest.approx(math.sqrt(8)))]


def test_divergence_of_equal_replicas_is_nothing():
    harness = divergence((0, 1))
    harness.send(sample(0, [0.1, -3]))
    assert measured(harness.send(sample(1, [0.1, -3]))) == [(0.0, 0.0)]


def test_divergence_of_one_node_is_nothing_and_comes_at_once():
    harness = divergence((0,))
    assert measured(harness.send(sample(0, [5, -5]))) == [(0.0, 0.0)]
    assert measured(harness.send(sample(0, [1, 1], turn=0, final=True))) == [(0.0, 0.0)]


def test_divergence_keeps_turns_apart():
    harness = divergence((0, 1))
    assert harness.send(sample(0, [0], turn=1)) == []
    assert harness.send(sample(0, [10], turn=2)) == []
    assert measured(harness.send(sample(1, [2], turn=1))) == [(1.0, 1.0)]
    assert measured(harness.send(sample(1, [4], turn=2))) == [(3.0, 3.0)]


def test_divergence_final_sample_waits_for_all_and_comes_after_every_turn():
    harness = divergence((0, 1))
    harness.send(sample(0, [0], turn=7))
    assert harness.send(sample(0, [1], turn=0, final=True)) == []  # node 0 has ended, node 1 is behind
    assert measured(harness.send(sample(1, [4], turn=7))) == [(2.0, 2.0)]
    assert measured(harness.send(sample(1, [1], turn=0, final=True))) == [(0.0, 0.0)]
    assert harness.states["waiting"].waiting == {}


def test_divergence_forgets_turns_that_some_node_never_sampled():
    harness = divergence((0, 1))
    harness.send(sample(0, [0], turn=3))  # node 1 passed over turn 3
    harness.send(sample(1, [0], turn=4))
    harness.send(sample(0, [0], turn=6))
    assert measured(harness.send(sample(1, [2], turn=6))) == [(1.0, 1.0)]
    assert harness.states["waiting"].waiting == {}


def test_samples_snapshot_is_not_changed_by_later_samples():
    harness = divergence((0, 1))
    harness.send(sample(0, [0], turn=3))
    snapshot = harness.states["waiting"].snapshot()
    harness.send(sample(1, [0], turn=3))
    assert {turn: list(samples) for turn, samples in snapshot.waiting.items()} == {(False, 3): [0]}


def test_samples_under_way_are_not_part_of_a_checkpoint():
    harness = divergence((0, 1))
    harness.send(sample(0, [0]))
    state = harness.states["waiting"]
    assert state.tensors() == {}
    state.restore({})
    assert state.waiting == {}
