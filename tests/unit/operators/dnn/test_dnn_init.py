import numpy as np
import pytest

from operators.dnn import BatchNorm, Conv, Dense, ModelSpec, Residual
from operators.dnn.init import initial_statistics, initial_weights


@pytest.mark.parametrize("init", ["uniform", "he", "glorot"])
def test_initial_weights_of_batch_norm_are_ones_and_zeros_whatever_the_init(init):
    layers = (Conv(filters=6, kernel=3), BatchNorm(), Residual(layers=(BatchNorm(),)), Dense(units=2))
    vector = initial_weights(ModelSpec(input=(1, 3, 3), layers=layers, init=init), np.random.default_rng(0))
    assert vector.shape == (6 * 9 + 6 + 12 + 12 + 2 * 6 + 2,)
    assert vector[60:84].tolist() == [1] * 6 + [0] * 6 + [1] * 6 + [0] * 6
    assert vector[:54].all()
    assert vector[84:96].all()


def test_initial_weights_around_batch_norm_are_those_without_it():
    conv, dense = Conv(filters=6, kernel=3), Dense(units=2)
    with_it, without = (
        initial_weights(ModelSpec(input=(1, 3, 3), layers=layers), np.random.default_rng(0))
        for layers in ((conv, BatchNorm(), dense), (conv, dense))
    )
    assert np.delete(with_it, np.arange(60, 72)).tolist() == without.tolist()


def test_initial_statistics_are_means_of_zero_and_variances_of_one():
    spec = ModelSpec(input=(2, 3, 3), layers=(BatchNorm(), Conv(filters=3, kernel=3), BatchNorm(), Dense(units=2)))
    statistics = initial_statistics(spec)
    assert statistics.dtype == np.float32
    assert statistics.tolist() == [0, 0, 1, 1, 0, 0, 0, 1, 1, 1]


def test_initial_statistics_of_network_without_batch_norm_are_none():
    assert initial_statistics(ModelSpec(input=(1, 1, 1), layers=(Dense(units=1),))).shape == (0,)
