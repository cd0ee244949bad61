"""The NumPy reference against PyTorch, an independent implementation, in float64."""

import numpy as np
import pytest
from dnn_networks import FURTHER, RELU, SMALL, any_network, batch_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from operators.dnn import (
    Activation,
    AvgPool,
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    GlobalAvgPool,
    MaxPool,
    ModelSpec,
    Residual,
    reference,
)
from operators.dnn.init import initial_statistics
from operators.dnn.spec import statistic_ranges, steps, weight_ranges

torch = pytest.importorskip("torch", reason="PyTorch, which the reference is compared with, is not installed")
functional = torch.nn.functional

DOWNSAMPLING = tuple(
    Residual(
        layers=(
            Conv(filters=filters, kernel=3, padding=1, stride=2),
            BatchNorm(momentum=0.3, epsilon=0.001),
            RELU,
            Conv(filters=filters, kernel=3, padding=1),
            BatchNorm(),
        ),
        shortcut=(Conv(filters=filters, kernel=1, stride=2), BatchNorm()),
    )
    for filters in (4, 5)
)

NETWORKS = {
    name: spec
    for name, spec in (SMALL | FURTHER).items()
    if not any(isinstance(step.layer, Dropout) and step.layer.rate for step in steps(spec))
} | {
    "stride_beyond_kernel": ModelSpec(
        input=(2, 9, 11), layers=(Conv(filters=3, kernel=2, stride=4, padding=1), RELU, Dense(units=3))
    ),
    "downsampling": ModelSpec(input=(3, 9, 7), layers=(*DOWNSAMPLING, RELU, GlobalAvgPool(), Dense(units=4))),
}
"""Without dropout, whose bits are our own."""


def apply(layers, x, weights, statistics, training):
    """Run a chain; the iterators give the layers' tensors, and the running statistics are written."""
    for layer in layers:
        match layer:
            case Conv():
                x = functional.conv2d(x, next(weights), next(weights), layer.stride, layer.padding)
            case Dense():
                x = functional.linear(x.flatten(1), next(weights), next(weights))[:, :, None, None]
            case BatchNorm():
                x = functional.batch_norm(
                    x,
                    next(statistics),
                    next(statistics),
                    next(weights),
                    next(weights),
                    training,
                    layer.momentum,
                    layer.epsilon,
                )
            case MaxPool():
                x = functional.max_pool2d(x, layer.size, layer.step)
            case AvgPool():
                x = functional.avg_pool2d(x, layer.size, layer.step)
            case GlobalAvgPool():
                x = functional.adaptive_avg_pool2d(x, 1)
            case Activation():
                x = getattr(torch, layer.function)(x)
            case Residual():
                body = apply(layer.layers, x, weights, statistics, training)
                x = body + apply(layer.shortcut, x, weights, statistics, training)
    return x


def logits_of(spec, vector, images, running, training):
    weights = iter([vector[r.start : r.stop].reshape(r.shape) for r in weight_ranges(spec)])
    statistics = iter([running[r.start : r.stop] for r in statistic_ranges(spec)])
    return apply(spec.layers, torch.from_numpy(images), weights, statistics, training)[:, :, 0, 0]


def statistics_of(spec, seed):
    size = initial_statistics(spec).size
    return np.random.default_rng(seed).uniform(0.5, 2, size)


def assert_equal_to_torch(spec, batch, seed):
    weights, images, labels = batch_of(spec, batch, np.float64, seed)
    statistics = statistics_of(spec, seed)

    vector = torch.from_numpy(weights).requires_grad_()
    running = torch.from_numpy(statistics.copy())
    logits = logits_of(spec, vector, images, running, training=True)
    loss = functional.cross_entropy(logits, torch.from_numpy(labels), reduction="sum")
    loss.backward()
    out, loss_sum, correct = reference.gradient(spec, weights, images, labels, 0.5)
    np.testing.assert_allclose(out, 0.5 * vector.grad.numpy(), rtol=1e-10, atol=1e-10)
    assert loss_sum == pytest.approx(loss.item(), rel=1e-10, abs=1e-12)
    assert correct == int((logits.argmax(1).numpy() == labels).sum())
    advanced = reference.advanced(spec, weights, images, statistics)
    np.testing.assert_allclose(advanced, running.numpy(), rtol=1e-10, atol=1e-10)

    evaluated = logits_of(spec, torch.from_numpy(weights), images, torch.from_numpy(statistics), training=False)
    ours = reference.forward(spec, weights, images, statistics=statistics)[-1][:, :, 0, 0]
    np.testing.assert_allclose(ours, evaluated.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_training_and_evaluation_equal_those_of_torch(name):
    assert_equal_to_torch(NETWORKS[name], 4, 1)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(spec=any_network(), batch=st.integers(1, 5), seed=st.integers(0, 1000))
def test_training_and_evaluation_of_any_small_network_equal_those_of_torch(spec, batch, seed):
    for step in steps(spec):
        assume(not (isinstance(step.layer, Dropout) and step.layer.rate))
        # PyTorch refuses to normalise one value per channel
        assume(not (isinstance(step.layer, BatchNorm) and batch * step.shape[1] * step.shape[2] == 1))
    assert_equal_to_torch(spec, batch, seed)
