from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from ako_jobs import ako
from ako_jobs.datasets import load
from ako_jobs.jobs import load_job, prepare
from ako_jobs.predict import ModelInput, load_model, predict
from dataflow.errors import ConfigError, DataError
from operators.dnn import Model, ModelSpec
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


JOB = """
import ako_jobs.ako
import os
from operators.data import DataRef
from operators.dnn import TorchSpec
from ako_jobs.ako import build as build_ako

def make(): raise RuntimeError("made")
def other(): raise RuntimeError("other")

class Config(ako_jobs.ako.Config):
    def network(self): return TorchSpec(factory="of_all:installed", input=(1, 8, 8), classes=10)
    def dataset(self): return DataRef(loader="of_all:load", name="digits")

def build(config: Config): return build_ako(config)
"""


def save_own(folder: Path, factory: str, loader: str = "ako_jobs.datasets:load") -> Path:
    """A folder with a model of somebody else's, and a job file beside it."""
    _, _, model_input = keep_model(folder)
    spec = {"factory": factory, "arguments": {}, "input": [1, 8, 8], "classes": 10}
    data = safetensors.numpy.save({"w": np.zeros(1, np.float32)}, {"model": json.dumps(spec)})
    (folder / "model.safetensors").write_bytes(data)
    config = {"input": model_input.model_dump(mode="json"), "config": {"p": 2}}
    config["input"]["data"]["loader"] = loader
    (folder / "config.json").write_text(json.dumps(config))
    (folder.parent / "its_job.py").write_text(JOB)
    return folder.parent / "its_job.py"


@pytest.mark.parametrize(
    "name", ["os:abort", "subprocess:run", "its_job:os.abort", "its_job:build_ako", "its_job:none", "out.evil:make"]
)
@pytest.mark.parametrize("what", ["network", "data loader"])
def test_load_model_calls_nothing_that_is_not_the_jobs(tmp_path: Path, name: str, what: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "evil.py").write_text("raise SystemExit('imported')")
    job = save_own(folder, name) if what == "network" else save_own(folder, "its_job:make", name)
    with pytest.raises(DataError, match=r"the (network|data loader) is code of a job's own \(got .*--job my_job.py"):
        load_model(folder)
    with pytest.raises(DataError, match=f"the {what} is no function of the job 'its_job'") as refused:
        load_model(folder, job=str(job))
    assert refused.value.got == name
    with pytest.raises(DataError, match="is no function of the job 'ako'"):
        load_model(folder, job="ako")


def test_load_model_makes_a_network_that_the_job_defines_or_names(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "out"
    folder.mkdir()
    job = save_own(folder, "its_job:make")
    with pytest.raises(ConfigError, match="RuntimeError: made"):
        load_model(folder, job=str(job))
    job = save_own(folder, "of_all:installed", "of_all:load")
    with pytest.raises(ConfigError, match="of_all:installed cannot be imported"):
        load_model(folder, job=str(job))


def test_load_model_looks_for_the_job(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such job file \(got nofile.py\); check its path; a relative one"):
        load_model(tmp_path, job="nofile.py")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("scale", 0, "does not say how images are put to the model"),
        ("scale", float("inf"), "does not say how images are put to the model"),
        ("normalise", {"mean": [float("nan")], "std": [1.0]}, "does not say how images are put to the model"),
        ("normalise", {"mean": [0.5, 0.5], "std": [1.0, 1.0]}, r"images of 1 channels.*got 2"),
    ],
)
def test_load_model_input_that_no_network_takes_is_refused(tmp_path: Path, key: str, value: object, said: str) -> None:
    *_, model_input = keep_model(tmp_path)
    config = {"input": model_input.model_dump(mode="json") | {key: value}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=said):
        load_model(tmp_path)


def test_load_model_config_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    keep_model(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="does not say how images are put to the model"):
        load_model(tmp_path)


def test_load_model_weights_that_are_not_finite_or_of_a_strange_type_are_refused(tmp_path: Path) -> None:
    spec, weights, _ = keep_model(tmp_path)
    weights[3] = np.nan
    (tmp_path / "model.safetensors").write_bytes(model_file(spec, weights, np.zeros(0, np.float32)))
    with pytest.raises(DataError, match="weights are not finite"):
        load_model(tmp_path)
    tensors = {"w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
    header = json.dumps({"__metadata__": {"model": spec.model_dump_json()}, **tensors}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    with pytest.raises(DataError, match=r"tensor w is of a type that no model has \(got BF16\)"):
        load_model(tmp_path)


def test_load_model_of_a_network_far_larger_than_its_file_takes_no_memory(tmp_path: Path) -> None:
    _, weights, _ = keep_model(tmp_path)
    spec = {"input": [1, 8, 8], "layers": [{"kind": "dense", "units": 10**11}, {"kind": "dense", "units": 10}]}
    data = safetensors.numpy.save({"w": weights}, {"model": json.dumps(spec)})
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(DataError, match="tensors are not those of its network"):
        load_model(tmp_path)


def test_predict_bytes_beyond_the_brightest_pixel_are_refused(tmp_path: Path) -> None:
    keep_model(tmp_path)
    with pytest.raises(DataError, match=r"brightest pixel of digits is 16, .*got 255"):
        predict(tmp_path, np.full((2, 1, 8, 8), 255, np.uint8))


def test_load_model_calls_nothing_of_ours_though_the_job_file_lies_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    for name, job in (("ako_jobs.jobs:load_job", str(Path(ako.__file__))), ("ako_jobs.ako:build", "ako")):
        save_own(folder, name)
        with pytest.raises(DataError, match="is no function of the job 'ako'"):
            load_model(folder, job=job)
