"""Jobs on data of the user's own: a configuration names what loads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from ako_jobs import ako, all_to_all
from ako_jobs.datasets import DataSet
from ako_jobs.predict import ModelInput
from ako_jobs.worker import Setting
from dataflow.errors import ConfigError, DataError
from operators.data import DataRef, open_data
from operators.dnn import Dense, ModelSpec, TorchSpec

CLASSES = 3


def load(name: str, data_dir: str | None) -> DataSet:
    rng = np.random.default_rng(len(f"{data_dir}"))
    images = rng.integers(256, size=(60, 2, 4, 5), dtype=np.uint8)
    labels = np.arange(60) % CLASSES
    return DataSet.from_arrays(
        name, (images[:40], labels[:40]), (images[40:], labels[40:]), n_classes=CLASSES, scale=255
    )


class Config(ako.Config):
    """Ako's, with data of one's own."""

    classes: int = CLASSES
    width: int = 5

    def dataset(self) -> DataRef:
        return DataRef(loader=load, name="noise", data_dir=self.data_dir)

    def network(self) -> ModelSpec:
        return ModelSpec(input=(2, 4, self.width), layers=(Dense(units=self.classes),))


def setting(**settings: Any) -> Setting:
    return Setting.of(Config.parse({"data_dir": "somewhere", **settings}))


def test_data_of_ones_own_are_trained_on_by_the_name_of_their_loader() -> None:
    found = setting(batch=4)
    assert found.data.loader == f"{__name__}:load"
    assert found.train_images == 36  # a tenth is held out
    assert found.passes.gradients(1) == 9
    assert open_data(found.data).n_classes == CLASSES
    graph = ako.build(found.config)
    assert ModelInput.of(graph) == ModelInput(data=found.data, scale=255.0, normalise=found.normalise)


def test_data_of_ones_own_fit_every_topology() -> None:
    class Other(all_to_all.Config):
        dataset, network = Config.dataset, Config.network  # type: ignore[assignment]
        classes: int = CLASSES
        width: int = 5

    source = all_to_all.build(Other.parse({"data_dir": "somewhere"})).operator("source")
    assert f"{__name__}:load" in source.params


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"width": 4}, r"takes images of shape \(2, 4, 4\), and those of noise have another \(got \(2, 4, 5\)\)"),
        ({"classes": 2}, r"fewer classes than the 3 of noise \(got 2\)"),
        ({"data": "mnist"}, r"data of its own, noise, and data names another set \(got mnist\)"),
    ],
)
def test_network_or_name_that_does_not_fit_the_data_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        setting(**settings)


def test_module_that_cannot_be_trained_is_refused_where_it_is_submitted() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")

    class Detached(Config):
        def network(self) -> TorchSpec:  # type: ignore[override]
            return TorchSpec(factory="own_modules:detached", input=(2, 4, 5), classes=CLASSES)

    with pytest.raises(ConfigError, match="own_modules:detached has no gradient"):
        Setting.of(Detached.parse({}))
    assert Setting.of(Detached.parse({"phantom": True})).layout.n_weights


def test_network_may_know_more_classes_than_there_are() -> None:
    assert setting(classes=7).layout.n_weights == 7 * 41


def load_half_dark(name: str, data_dir: str | None) -> DataSet:
    images = np.zeros((10, 2, 4, 5), np.uint8)
    images[:, 0] = np.arange(5)
    part = images, np.arange(10) % CLASSES
    return DataSet.from_arrays(name, part, part, n_classes=CLASSES, scale=255)


def test_channel_of_one_value_is_refused_where_it_would_be_normalised() -> None:
    class HalfDark(Config):
        def dataset(self) -> DataRef:
            return DataRef(loader=load_half_dark, name="half_dark")

    with pytest.raises(DataError, match=r"channel 1 of half_dark are alike, and cannot.*normalise=false"):
        Setting.of(HalfDark.parse({}))
    assert Setting.of(HalfDark.parse({"normalise": False})).normalise is None


def test_loader_that_no_node_finds_is_refused() -> None:
    with pytest.raises(ValidationError, match="cannot be found by name on a node"):
        DataRef(loader=lambda name, _: load(name, None), name="noise")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="the data loader cannot be imported"):
        open_data(DataRef(loader="no_such_module:load", name="noise"))
