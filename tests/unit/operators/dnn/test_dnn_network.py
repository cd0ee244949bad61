import sys

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from dataflow.errors import ConfigError
from operators.dnn import BatchNorm, Dense, Dropout, Model, ModelSpec, NetworkSpec, Residual, TorchSpec, build_network
from operators.dnn.integers import to_floats, to_integers
from operators.dnn.network import mean_statistics
from operators.dnn.torch_spec import INSTALL_TORCH

TWO = ModelSpec(input=(1, 1, 2), layers=(Dense(units=2),))
LAST = Dense(units=2)
IDENTITY = np.array([1, 0, 0, 1, 0, 0], np.float32)
SPECS = TypeAdapter(NetworkSpec)
OWN = TorchSpec(factory="nets:make", arguments={"b": [1, {"c": None}], "a": 2.5}, input=(1, 1, 2), classes=2)


def some_function() -> int:
    return 1


def test_network_spec_json_round_trip_gives_the_same_kind():
    for spec in (TWO, OWN):
        again = SPECS.validate_json(SPECS.dump_json(spec))
        assert again == spec
        assert type(again) is type(spec)
        assert hash(again) == hash(spec)


def test_network_spec_of_model_files_kept_before_still_loads():
    text = '{"input":[1,1,2],"layers":[{"kind":"dense","units":2}],"init":"uniform"}'
    assert SPECS.validate_json(text) == ModelSpec(input=(1, 1, 2), layers=(Dense(units=2),))


def test_network_spec_error_names_the_fields_of_its_own_kind_only():
    with pytest.raises(ValidationError) as caught:
        SPECS.validate_python({"factory": "a:b", "input": (1, 1, 2), "classes": 0})
    assert [error["loc"] for error in caught.value.errors()] == [("torch", "classes")]


def test_torch_spec_order_of_arguments_does_not_matter():
    other = OWN.model_copy(update={"arguments": {"a": 2.5, "b": [1, {"c": None}]}})
    assert other == OWN
    assert hash(other) == hash(OWN)


def test_torch_spec_of_a_function_keeps_its_name():
    spec = TorchSpec(factory=some_function, input=(1, 1, 2), classes=2, loss=some_function)  # type: ignore[arg-type]
    assert spec.factory == spec.loss == "test_dnn_network:some_function"


@pytest.mark.parametrize("factory", [lambda: None, 3, "make", "nets.make", ":make", "nets:"])
def test_torch_spec_factory_that_no_node_can_find_is_refused(factory):
    with pytest.raises(ValidationError, match="factory"):
        TorchSpec(factory=factory, input=(1, 1, 2), classes=2)


def test_torch_spec_function_of_the_main_program_is_refused(monkeypatch):
    monkeypatch.setattr(some_function, "__module__", "__main__")
    with pytest.raises(ValidationError, match="cannot be found by name on a node"):
        TorchSpec(factory=some_function, input=(1, 1, 2), classes=2)


def test_build_network_of_layers_is_a_model_without_statistics():
    network = build_network(TWO)
    assert isinstance(network, Model)
    assert network.n_statistics == 0
    assert network.initial_statistics().shape == (0,)


def test_build_network_without_pytorch_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "operators.dnn.torch_model", raising=False)
    with pytest.raises(ConfigError, match=r"nets:make makes a torch.nn.Module, and PyTorch is not installed") as caught:
        build_network(OWN)
    assert caught.value.fix == INSTALL_TORCH
    assert "pip install 'ako-dataflow[torch]'" in INSTALL_TORCH


def test_model_vectors_are_those_that_tensors_gave():
    model, none = Model(TWO), np.zeros(0, np.float32)
    tensors = model.tensors(IDENTITY, none)
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "dense1.weight": [[1, 0], [0, 1]],
        "dense1.bias": [0, 0],
    }
    weights, statistics = model.vectors(tensors)
    assert weights.tolist() == IDENTITY.tolist()
    assert statistics.shape == (0,)


def test_model_tensors_of_batch_normalisation_are_weights_and_statistics_by_name():
    model = Model(ModelSpec(input=(1, 1, 2), layers=(Dense(units=1), BatchNorm(), Dense(units=1), BatchNorm(), LAST)))
    weights = np.arange(model.n_weights, dtype=np.float32)
    tensors = model.tensors(weights, np.array([1, 2, 3, 4], np.float32))
    assert {name: tensor.tolist() for name, tensor in tensors.items() if "batch_norm" in name} == {
        "batch_norm1.weight": [3],
        "batch_norm1.bias": [4],
        "batch_norm2.weight": [7],
        "batch_norm2.bias": [8],
        "batch_norm1.mean": [1],
        "batch_norm1.variance": [2],
        "batch_norm2.mean": [3],
        "batch_norm2.variance": [4],
    }
    again = model.vectors(tensors)
    assert again[0].tolist() == weights.tolist()
    assert again[1].tolist() == [1, 2, 3, 4]
    del tensors["batch_norm2.mean"]
    with pytest.raises(ValueError, match=r"batch_norm2.mean must have shape \(1,\), got none"):
        model.vectors(tensors)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dense1.bias": np.zeros(3, np.float32)}, r"dense1.bias must have shape \(2,\), got \(3,\)"),
        ({"extra": np.zeros(1, np.float32)}, "no tensors extra"),
    ],
)
def test_model_vectors_of_other_tensors_are_refused(change, said):
    model = Model(TWO)
    with pytest.raises(ValueError, match=said):
        model.vectors(model.tensors(IDENTITY, np.zeros(0, np.float32)) | change)


def test_model_vectors_with_a_tensor_missing_are_refused():
    with pytest.raises(ValueError, match=r"dense1.weight must have shape"):
        Model(TWO).vectors({"dense1.bias": np.zeros(2, np.float32)})


def test_mean_statistics_is_weighted_by_images():
    mean = mean_statistics([np.array([1, 5], np.float32), np.array([3, 5], np.float32)], [1, 3])
    assert mean.tolist() == [2.5, 5]
    assert mean.dtype == np.float32


def test_mean_statistics_numbers_that_agree_keep_their_bits():
    same = np.array([0.1, 1 / 3, -np.inf, 2**24 - 1], np.float32)
    assert mean_statistics([same, same.copy(), same.copy()], [3, 7, 1]).tobytes() == same.tobytes()


def test_mean_statistics_of_integers_of_mixed_sign_is_the_rounded_mean_and_of_floats_beside_them_is_none():
    parts = [np.append(to_floats(np.array([number, -number, 7])), np.float32(number)) for number in (-1, 1)]
    mean = mean_statistics(parts, [1, 2], [slice(0, 9)])
    assert to_integers(mean[:9]).tolist() == [0, 0, 7]
    assert mean[9] == np.float32(1 / 3)


def test_mean_statistics_of_integers_that_agree_in_a_part_only():
    parts = [to_floats(np.array([number])) for number in (5 << 24, (1 << 48) + (5 << 24))]
    assert to_integers(mean_statistics(parts, [1, 1], [slice(0, 3)])).tolist() == [(1 << 47) + (5 << 24)]


def test_mean_statistics_of_one_part_is_that_part():
    part = np.array([0.1, np.nan], np.float32)
    assert mean_statistics([part], [4]).tobytes() == part.tobytes()


@pytest.mark.parametrize(
    ("layers", "random"),
    [
        ((LAST,), False),
        ((Dropout(rate=0.5), LAST), True),
        ((Residual(layers=(Dropout(rate=0.5),)), LAST), True),
    ],
)
def test_model_random_is_whether_it_drops_anything(layers, random):
    assert build_network(ModelSpec(input=(1, 1, 2), layers=layers)).random is random
