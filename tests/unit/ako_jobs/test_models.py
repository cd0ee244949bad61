from collections import Counter

import numpy as np
import pytest

from ako_jobs.models import network
from operators.dnn import Model, reference
from operators.dnn.spec import statistic_ranges, steps, weight_ranges


def test_resnet20_has_the_weights_counted_by_hand():
    first = 3 * 9 * 16 + 16 + 32
    stage_16 = 3 * (2 * (16 * 9 * 16 + 16) + 2 * 32)
    stage_32 = (16 * 9 * 32 + 32) + 5 * (32 * 9 * 32 + 32) + 6 * 64 + (16 * 32 + 32 + 64)
    stage_64 = (32 * 9 * 64 + 64) + 5 * (64 * 9 * 64 + 64) + 6 * 128 + (32 * 64 + 64 + 128)
    dense = 64 * 10 + 10
    assert (first, stage_16, stage_32, stage_64, dense) == (480, 14_112, 51_872, 206_144, 650)
    n_weights = weight_ranges(network("resnet20", "cifar10", "he"))[-1].stop
    assert n_weights == first + stage_16 + stage_32 + stage_64 + dense == 273_258
    # without the biases of seven convolutions of each width, as published implementations with these shortcuts have
    assert n_weights - 7 * (16 + 32 + 64) == 272_474


def test_resnet20_has_a_mean_and_a_variance_for_each_normalised_channel():
    # the first layer and six in each stage, and the shortcuts of two stages
    channels = 16 + 6 * (16 + 32 + 64) + 32 + 64
    assert statistic_ranges(network("resnet20", "cifar10", "he"))[-1].stop == 2 * channels


def test_resnet20_has_twenty_layers_on_the_longest_way_and_halves_the_image_twice():
    spec = network("resnet20", "cifar10", "he")
    kinds = Counter(
        step.layer.kind for step in steps(spec) if not any(name.startswith("shortcut") for name in step.path)
    )
    assert kinds["conv"] + kinds["dense"] == 20
    assert kinds["residual"] == 9
    assert [shape for shape, count in Counter(spec.shapes()).items()] == [
        (3, 32, 32),
        (16, 32, 32),
        (32, 16, 16),
        (64, 8, 8),
        (64, 1, 1),
        (10, 1, 1),
    ]


def test_resnet20_has_as_many_weights_as_the_modules_of_torch():
    nn = pytest.importorskip("torch", reason="PyTorch, whose count is compared with, is not installed").nn
    n_weights = 0
    spec = network("resnet20", "cifar10", "he")
    for step in steps(spec):
        layer, channels = step.layer, step.shape[0]
        if layer.kind == "conv":
            module = nn.Conv2d(channels, layer.filters, layer.kernel, layer.stride, layer.padding)
        elif layer.kind == "batch_norm":
            module = nn.BatchNorm2d(channels)
        elif layer.kind == "dense":
            module = nn.Linear(channels, layer.units)
        else:
            continue
        n_weights += sum(parameter.numel() for parameter in module.parameters())
    assert n_weights == weight_ranges(spec)[-1].stop


def test_resnet20_training_step_in_float32_equals_the_reference(monkeypatch):
    # Of half a million numbers that go into a ReLU some are so near to zero that rounding, which differs between
    # processors, decides on which side: that moves the gradient by a hundredth. With this seed none is.
    nearest, activate = list[float](), reference._activate
    monkeypatch.setattr(reference, "_activate", lambda layer, x: nearest.append(np.abs(x).min()) or activate(layer, x))
    model = Model(network("resnet20", "cifar10", "he"))
    rng = np.random.default_rng(57)
    weights, statistics = model.initial(rng), model.initial_statistics()
    images, labels = rng.random((2, 3, 32, 32), np.float32), np.array([0, 3])
    in_double = weights.astype(np.float64), images.astype(np.float64)
    expected, expected_loss, _ = reference.gradient(model.spec, *in_double, labels, 0.25)
    assert min(nearest) > 2e-5
    expected_statistics = reference.advanced(model.spec, *in_double, statistics)
    out = np.empty_like(weights)
    loss, _ = model.gradient(weights, images, labels, out, model.workspace(2), 0.25, statistics=statistics, seed=0)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert np.abs(out - expected).max() < 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(statistics, expected_statistics, rtol=1e-4, atol=1e-5)
    assert (statistics != model.initial_statistics()).all()
