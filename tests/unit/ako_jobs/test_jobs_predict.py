from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from ako_jobs.datasets import load
from ako_jobs.jobs import load_job, prepare
from ako_jobs.predict import ModelInput, load_model, predict
from dataflow.errors import ConfigError, DataError
from operators.dnn import Model, ModelSpec, TorchSpec
from operators.keep_model import model_file


def keep_model(folder: Path, normalise: str = "true") -> tuple[ModelSpec, np.ndarray, ModelInput]:
    prepared = prepare(load_job("ako"), {"model": "mlp", "normalise": normalise, "warm_start": "0"}, nodes=1)
    spec = ModelSpec.model_validate_json(json.dumps(json.loads(prepared.graph.operator("examine").params)["model"]))
    weights = Model(spec).initial(np.random.default_rng(1))
    model_input = ModelInput.of(prepared.graph)
    assert model_input is not None
    (folder / "model.safetensors").write_bytes(model_file(spec, weights, np.zeros(0, np.float32)))
    (folder / "config.json").write_text(json.dumps({"input": model_input.model_dump(mode="json")}))
    return spec, weights, model_input


@pytest.mark.parametrize("normalise", ["true", "false"])
def test_predict_normalises_as_training_did(tmp_path: Path, normalise: str) -> None:
    spec, weights, _ = keep_model(tmp_path, normalise)
    data = load("digits")
    images = data.test_images[:300]
    inputs = (images / np.float32(16)).astype(np.float32)
    if normalise == "true":
        inputs = ((inputs - np.float32(data.mean[0])) / np.float32(data.std[0])).astype(np.float32)
    model = Model(spec)
    expected = model.predict(weights, inputs, model.workspace(300), statistics=np.zeros(0, np.float32))

    trained = load_model(tmp_path)
    np.testing.assert_array_equal(trained.weights, weights)
    np.testing.assert_allclose(trained.probabilities(images), expected, atol=1e-5)
    np.testing.assert_array_equal(predict(tmp_path, images), expected.argmax(axis=1))
    np.testing.assert_allclose(trained.probabilities(images / 16), expected, atol=1e-5)
    right = int((predict(tmp_path, data.test_images) == data.test_labels).sum())
    assert trained.test() == (right, 355)


def test_predict_no_images_gives_no_classes(tmp_path: Path) -> None:
    keep_model(tmp_path)
    assert predict(tmp_path, np.empty((0, 1, 8, 8), np.uint8)).shape == (0,)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.zeros((2, 8, 8), np.uint8), r"shape .images, 1, 8, 8. .got .2, 8, 8."),
        (np.zeros((2, 1, 8, 8), np.int64), "unsigned bytes, or floats"),
        (np.full((2, 1, 8, 8), 1.5), r"values in \[0, 1\] \(got 1.5 to 1.5\)"),
        (np.full((2, 1, 8, 8), -0.5, np.float32), r"got -0.5 to -0.5"),
        (np.full((2, 1, 8, 8), np.nan), r"got nan to nan"),
    ],
)
def test_predict_wrong_images_are_refused(tmp_path: Path, images: np.ndarray, said: str) -> None:
    keep_model(tmp_path)
    with pytest.raises(DataError, match=said):
        predict(tmp_path, images)


def test_load_model_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no trained model here at .*model.safetensors"):
        load_model(tmp_path)


@pytest.mark.parametrize("length", [0, 7, 100, 2000])
def test_load_model_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    keep_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match="holds no model"):
        load_model(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"input": null}'])
def test_load_model_config_that_does_not_say_how_is_refused(tmp_path: Path, text: str) -> None:
    keep_model(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError, match="does not say how images are put to the model"):
        load_model(tmp_path)


def test_load_model_of_a_module_that_is_not_found_says_to_name_the_job(tmp_path: Path) -> None:
    spec = TorchSpec(factory="module_of_nobody:make", input=(1, 8, 8), classes=10)
    data = safetensors.numpy.save({"w": np.zeros(1, np.float32)}, {"model": spec.model_dump_json()})
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(DataError, match=r"module_of_nobody:make, which is not found .*--job FILE"):
        load_model(tmp_path)
    with pytest.raises(ConfigError, match=r"no such job file \(got nofile.py\); check its path; a relative one"):
        load_model(tmp_path, job="nofile.py")
