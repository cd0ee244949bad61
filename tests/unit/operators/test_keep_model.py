import json

import numpy as np
import safetensors
import safetensors.numpy
from tiny_data import IDENTITY, TWO

from dataflow.testing.operator_harness import Harness
from operators.average import Average
from operators.dnn import ModelSpec
from operators.keep_model import KeepModel, model_file
from operators.messages import Progress
from operators.vector_state import VectorState

NONE = np.zeros(0, np.float32)


def keep_model():
    states = {
        "replica": VectorState(IDENTITY.copy()),
        "average": Average(n_weights=IDENTITY.size),
        "statistics": VectorState(NONE),
    }
    return Harness(KeepModel(model=TWO), states=states)


def progress(step, *, final=False):
    return Progress(step=step, images=step * 40, epoch=0.0, loss=0.0, final=final)


FINAL = progress(8, final=True)


def test_keep_model_final_progress_keeps_the_named_weights_and_the_network():
    (artifact,) = keep_model().send(FINAL)
    assert artifact.name == "model.safetensors"
    tensors = safetensors.numpy.load(artifact.data)
    assert sorted(tensors) == ["dense1.bias", "dense1.weight"]
    assert tensors["dense1.weight"].tolist() == [[1, 0], [0, 1]]
    assert tensors["dense1.bias"].tolist() == [0, 0]
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}


def test_keep_model_keeps_the_average_of_the_weights_where_there_is_one():
    harness = keep_model()
    harness.states["average"].follow(IDENTITY + 1, 2.0)
    (artifact,) = harness.send(FINAL)
    assert safetensors.numpy.load(artifact.data)["dense1.bias"].tolist() == [1, 1]


def test_model_file_header_holds_the_specification(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(model_file(TWO, IDENTITY, NONE))
    with safetensors.safe_open(path, framework="numpy") as file:
        assert ModelSpec.model_validate(json.loads(file.metadata()["model"])) == TWO


def test_keep_model_before_the_final_progress_and_at_the_end_itself_keeps_nothing():
    harness = keep_model()
    assert harness.send(progress(6)) == []
    harness.send(FINAL)
    assert harness.end() == []
