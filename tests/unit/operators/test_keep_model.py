import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from operators.checkpoint import Checkpoint, model_file
from tiny_data import IDENTITY, TWO

from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.clocks import ClocksState, everything
from operators.dnn import ModelSpec
from operators.messages import Progress
from operators.roll import RollState
from operators.vector_state import VectorState

NONE = np.zeros(0, np.float32)


def checkpoint(index=0, gone=()):
    node = NodeContext(index=index, name=f"node-{index}", members={"worker": (0, 1)})
    clocks = ClocksState(2, everything((0, 1), 2, without=index))
    states = {
        "replica": VectorState(IDENTITY.copy()),
        "statistics": VectorState(NONE),
        "velocity": VectorState(IDENTITY / np.float32(4)),
        "clocks": clocks,
        "roll": RollState(index, (0, 1), 0),
    }
    for member in gone:
        states["roll"].leave(member)
    return Harness(Checkpoint(model=TWO), node=node, states=states)


def progress(step, *, final=False):
    return Progress(step=step, images=step * 40, epoch=0.0, loss=0.0, final=final)


FINAL = progress(8, final=True)


def test_checkpoint_final_progress_keeps_the_named_weights_and_the_network():
    (artifact,) = checkpoint().send(FINAL)
    assert artifact.name == "model.safetensors"
    tensors = safetensors.numpy.load(artifact.data)
    assert sorted(tensors) == ["dense1.bias", "dense1.weight"]
    assert tensors["dense1.weight"].tolist() == [[1, 0], [0, 1]]
    assert tensors["dense1.bias"].tolist() == [0, 0]
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}


def test_model_file_header_holds_the_specification(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(model_file(TWO, IDENTITY, NONE))
    with safetensors.safe_open(path, framework="numpy") as file:
        assert ModelSpec.model_validate(json.loads(file.metadata()["model"])) == TWO


def test_checkpoint_final_model_is_that_of_the_first_node_that_is_there():
    assert checkpoint(index=1).send(FINAL) == []
    assert [artifact.name for artifact in checkpoint(index=1, gone=(0,)).send(FINAL)] == ["model.safetensors"]


def test_checkpoint_end_itself_keeps_nothing():
    harness = checkpoint()
    harness.send(FINAL)
    assert harness.end() == []


@pytest.mark.parametrize("index", [0, 1])
def test_checkpoint_keeps_one_on_every_node_at_every_progress_it_is_told(index):
    harness = checkpoint(index=index)
    names = []
    for made in (3, 5, 8):
        harness.states["clocks"].made = made
        names += [effect.name for effect in harness.send(progress(made))]
    assert names == [f"checkpoints/node-{index}-step-0000000{made}.safetensors" for made in (3, 5, 8)]


def test_checkpoint_of_later_weights_than_it_was_told_of_is_named_after_the_weights():
    harness = checkpoint()
    harness.states["clocks"].made = 7
    (artifact,) = harness.send(progress(6))
    assert artifact.name == "checkpoints/node-0-step-00000007.safetensors"
    assert safetensors.numpy.load(artifact.data)["clocks.made"].tolist() == [7, 0]


def test_checkpoint_without_momentum_keeps_an_empty_velocity():
    harness = checkpoint()
    harness.states["velocity"].values = np.zeros(0, np.float32)
    (artifact,) = harness.send(progress(6))
    assert safetensors.numpy.load(artifact.data)["velocity"].shape == (0,)


def test_checkpoint_round_trip_restores_replica_velocity_and_clocks():
    harness = checkpoint()
    clocks = harness.states["clocks"]
    clocks.made, clocks.images = 6, 96
    clocks.advance(1, slice(0, 1), 0, 4, span=3)
    (artifact,) = harness.send(progress(6))
    tensors = safetensors.numpy.load(artifact.data)
    replica = VectorState(np.zeros_like(IDENTITY))
    replica.restore({"values": tensors["replica"]})
    assert np.array_equal(replica.values, IDENTITY)
    velocity = VectorState(np.zeros_like(IDENTITY))
    velocity.restore({"values": tensors["velocity"]})
    assert velocity.values.tolist() == [0.25, 0, 0, 0.25, 0, 0]
    restored = ClocksState(2, {})
    restored.restore({name.removeprefix("clocks."): tensor for name, tensor in tensors.items() if "." in name})
    assert (restored.made, restored.images, restored.applied(1).tolist(), restored.slowest()) == (6, 96, [4, 0], 3)
