"""Statistics of a network from the first step to the files: who advances them, who reads them, where they are kept."""

import numpy as np
import pytest
import safetensors.numpy
from tiny_data import IDENTITY, TWO, data

from dataflow.errors import ConfigError
from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.average import Average
from operators.clocks import ClocksState
from operators.compute import Compute
from operators.dnn import TorchSpec, build_network
from operators.examine import Examine
from operators.keep_model import model_file
from operators.messages import Batch, Share
from operators.schedule import Schedule
from operators.vector_state import Replica, Statistics, VectorState
from operators.warm_start import WarmStart

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ako-dataflow[torch]'")
torch.set_num_threads(1)  # as in a job process

OWN = TorchSpec(factory="own_network:Averaging", input=(1, 1, 2), classes=2, device="cpu")
NETWORK = build_network(OWN)
IMAGES = np.array([[1, 0], [0, 1], [0.5, 0.25], [0.75, 1]], np.float32).reshape(4, 1, 1, 2)
LABELS = np.array([0, 0, 1, 1])
START = NETWORK.vectors(
    {
        "dense.weight": np.eye(2, dtype=np.float32),
        "dense.bias": np.zeros(2, np.float32),
        "mean": np.array([4, 8], np.float32),
        "batches": np.array(2**24 + 1),
    }
)


def compute(model=OWN, statistics=START[1]):
    states = {
        "replica": VectorState(START[0].copy()),
        "statistics": VectorState(statistics.copy()),
        "velocity": VectorState(np.zeros(0, np.float32)),
        "average": Average(n_weights=0),
        "clocks": ClocksState(2, {}),
    }
    return Harness(Compute(model=model, schedule=Schedule(lr=0.3), emits="gradient"), states=states)


def shard(number, count, rows):
    return Batch(0, number, count, IMAGES[rows], LABELS[rows], 4, 0.0, 0.5, 4)


def kept(harness):
    named = NETWORK.tensors(harness.states["replica"].values, harness.states["statistics"].values)
    return named["mean"].tolist(), int(named["batches"])


def test_statistics_of_one_shard_are_those_the_network_left():
    harness = compute()
    harness.send(shard(0, 1, slice(0, 4)))
    assert kept(harness) == ([2 + 0.5 * 2.25 / 4, 4 + 0.5 * 2.25 / 4], 2**24 + 2)


def test_statistics_of_two_shards_are_their_mean_weighted_by_images():
    harness = compute()
    harness.send(shard(0, 2, slice(0, 1)))
    harness.send(shard(1, 2, slice(1, 4)))
    # Shard 0 sees (1, 0), shard 1 the means 1.25 / 3 and 2.25 / 3; weights 1/4 and 3/4.
    mean, batches = kept(harness)
    assert mean == pytest.approx([2 + (1 * 0.5 + 3 * 0.5 * 1.25 / 3) / 4, 4 + (0 + 3 * 0.5 * 2.25 / 3) / 4], rel=1e-6)
    assert batches == 2**24 + 2


def test_statistics_that_are_integers_of_both_signs_are_their_rounded_mean():
    spec = OWN.model_copy(update={"factory": "own_network:Signed"})
    network = build_network(spec)
    harness = compute(spec, network.initial_statistics())
    harness.send(shard(0, 2, slice(0, 1)))  # 1
    harness.send(shard(1, 2, [1, 1]))  # -2 of two images
    tensors = network.tensors(START[0], harness.states["statistics"].values)
    assert int(tensors["balance"]) == -1


def test_statistics_of_a_shard_without_images_do_not_count():
    harness = compute()
    harness.send(shard(0, 2, slice(0, 0)))
    harness.send(shard(1, 2, slice(0, 4)))
    alone = compute()
    alone.send(shard(0, 1, slice(0, 4)))
    assert kept(harness) == kept(alone)


def test_statistics_snapshot_is_never_written():
    harness, before = compute(), START[1].copy()
    harness.part(shard(0, 1, slice(0, 4)))
    assert harness.states["statistics"].values.tobytes() == before.tobytes()


def test_compute_of_a_torch_network_emits_the_gradient_of_the_same_network_in_layers():
    layers = {
        "replica": VectorState(IDENTITY.copy()),
        "statistics": VectorState(np.zeros(0, np.float32)),
        "velocity": VectorState(np.zeros(0, np.float32)),
        "average": Average(n_weights=0),
        "clocks": ClocksState(2, {}),
    }
    ours = Harness(Compute(model=TWO, schedule=Schedule(lr=0.3), emits="gradient"), states=layers)
    own = compute()
    for harness in (ours, own):
        harness.send(shard(0, 2, slice(0, 2)))
        harness.send(shard(1, 2, slice(2, 4)))
    want, got = ours.emitted("gradients")[0].values, own.emitted("gradients")[0].values
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    assert own.states["replica"].values == pytest.approx(ours.states["replica"].values, rel=1e-5)


def test_statistics_are_kept_and_go_on_bit_for_bit():
    kept = VectorState(START[1].copy()).kept()
    restored = Statistics(model=OWN).create(NodeContext())
    restored.resume(kept, 0, {})
    assert restored.values.tobytes() == START[1].tobytes()


def test_model_file_is_a_state_dict_of_the_users_module():
    file = safetensors.numpy.load(model_file(OWN, *START))
    assert file["batches"].dtype == np.int64
    module = torch.nn.Module()
    module.dense = torch.nn.Linear(2, 2)
    module.register_buffer("mean", torch.zeros(2))
    module.register_buffer("batches", torch.tensor(0))
    module.load_state_dict({name: torch.tensor(tensor) for name, tensor in file.items()})
    assert int(module.batches) == 2**24 + 1
    assert module.mean.tolist() == [4, 8]


def test_warm_start_advances_the_statistics_alike_on_every_node():
    warm = WarmStart(fraction=0.5, lr=0.25, batch=4, data=data(20))
    members = {"worker": (0, 1)}
    first, second = (
        Statistics(model=OWN, warm_start=warm).create(NodeContext(index=index, members=members)) for index in (0, 1)
    )
    named = NETWORK.tensors(START[0], first.values)
    assert int(named["batches"]) == 3  # ten images in batches of four
    assert named["mean"][0] > 0
    assert first.values.tobytes() == second.values.tobytes()
    assert not np.shares_memory(first.values, second.values)
    cold = Statistics(model=OWN).create(NodeContext(members=members))
    assert cold.values.tobytes() == NETWORK.initial_statistics().tobytes()
    replica = Replica(model=OWN, warm_start=warm).create(NodeContext(members=members))
    assert not np.array_equal(replica.values, Replica(model=OWN).create(NodeContext(members=members)).values)


def test_examine_looks_at_images_with_the_nodes_statistics():
    spec = TorchSpec(factory="own_network:Shifted", input=(1, 1, 2), classes=2, device="cpu")
    network = build_network(spec)
    weights = {"dense.weight": np.eye(2, dtype=np.float32), "dense.bias": np.zeros(2, np.float32)}
    for shift, correct in (((0, 0), 4), ((0, 9), 3)):  # the second takes every image for class 1
        replica, statistics = network.vectors(weights | {"shift": np.array(shift, np.float32)})
        states = {
            "replica": VectorState(replica),
            "average": Average(n_weights=0),
            "statistics": VectorState(statistics),
            "clocks": ClocksState(1, {}),
        }
        harness = Harness(Examine(model=spec, data=data(4)), states=states)
        harness.send(Share(1, np.array([0]), step=1, epoch=1.0, loss=0.0))
        assert harness.emitted("whole")[0].correct == correct


def test_statistics_of_a_network_that_no_node_can_make_are_refused():
    with pytest.raises(ConfigError, match=r"own_network:Missing cannot be imported"):
        Statistics(model=OWN.model_copy(update={"factory": "own_network:Missing"})).create(NodeContext())
