import math

import numpy as np
import pytest
from dnn_networks import MNIST, RELU, SIGMOID, SMALL, TANH, batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.dnn import Conv, Dense, MaxPool, Model, ModelSpec, reference
from operators.dnn.kernels import loss, network
from operators.dnn.kernels.activation import activate
from operators.dnn.program import compile_program


def read_only(array):
    view = array.view()
    view.flags.writeable = False
    return view


def kernel_gradient_64(spec, weights, images, labels, scale):
    """Run the kernels compiled for float64, over a workspace of NaN."""
    program, size = compile_program(spec, len(images))
    out = np.full_like(weights, np.nan)
    rows = images.reshape(len(images), -1)
    buffer = np.full(size, np.nan)
    result = network.gradient(program, read_only(weights), read_only(rows), read_only(labels), out, buffer, scale)
    return out, *result


@pytest.mark.parametrize("batch", [1, 2, 5, 17])
@pytest.mark.parametrize("name", SMALL)
def test_gradient_in_float32_equals_reference(name, batch):
    spec = SMALL[name]
    model = Model(spec)
    weights, images, labels = batch_of(spec, batch)
    expected, expected_loss, expected_correct = reference.gradient(
        spec, weights.astype(np.float64), images.astype(np.float64), labels, 1 / batch
    )
    out = np.full_like(weights, np.nan)
    loss_sum, correct = model.gradient(weights, images, labels, out, model.workspace(batch), 1 / batch)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=2e-6)
    assert loss_sum == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
    assert correct == expected_correct


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_gradient_of_mnist_network_equals_reference(batch):
    model = Model(MNIST)
    _, images, labels = batch_of(MNIST, batch)
    weights = model.initial(np.random.default_rng(3))
    expected, expected_loss, expected_correct = reference.gradient(
        MNIST, weights.astype(np.float64), images.astype(np.float64), labels, 1 / batch
    )
    out = np.empty_like(weights)
    loss_sum, correct = model.gradient(weights, images, labels, out, model.workspace(64), 1 / batch)
    assert np.abs(out - expected).max() < 1e-5 * np.abs(expected).max()
    assert loss_sum == pytest.approx(expected_loss, rel=1e-5)
    assert correct == expected_correct


@pytest.mark.parametrize("name", SMALL)
def test_gradient_in_float64_equals_finite_differences(name):
    spec = SMALL[name]
    weights, images, labels = batch_of(spec, 3, np.float64)
    out, _, _ = kernel_gradient_64(spec, weights, images, labels, 1.0)
    step = 1e-6
    for i in range(weights.size):
        losses = []
        for sign in (1, -1):
            moved = weights.copy()
            moved[i] += sign * step
            losses.append(kernel_gradient_64(spec, moved, images, labels, 1.0)[1])
        assert out[i] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-6, abs=1e-8)


@st.composite
def networks(draw):
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)))
    layers, last = [], shape
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["conv", "pool", "dense", "activation"]))
        side = min(last[1:])
        if kind == "conv":
            kernel = draw(st.integers(1, min(side, 4)))
            padding, stride = draw(st.integers(0, kernel - 1)), draw(st.integers(1, 3))
            layer = Conv(filters=draw(st.integers(1, 4)), kernel=kernel, padding=padding, stride=stride)
        elif kind == "pool":
            layer = MaxPool(size=draw(st.integers(1, min(side, 3))), stride=draw(st.none() | st.integers(1, 3)))
        elif kind == "dense":
            layer = Dense(units=draw(st.integers(1, 5)))
        else:
            layer = draw(st.sampled_from([RELU, SIGMOID, TANH]))
        layers.append(layer)
        last = layer.output_shape(last)
    return ModelSpec(input=shape, layers=(*layers, Dense(units=draw(st.integers(1, 4)))))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(spec=networks(), batch=st.integers(1, 6), seed=st.integers(0, 1000))
def test_gradient_of_any_small_network_equals_reference(spec, batch, seed):
    weights, images, labels = batch_of(spec, batch, np.float64, seed)
    expected, expected_loss, expected_correct = reference.gradient(spec, weights, images, labels, 0.25)
    out, loss_sum, correct = kernel_gradient_64(spec, weights, images, labels, 0.25)
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-12)
    assert loss_sum == pytest.approx(expected_loss, rel=1e-9, abs=1e-12)
    assert correct == expected_correct


def test_gradient_of_conv_in_several_tiles_equals_reference():
    # 9 * 40 * 8 = 2,880 column elements a row: 40 rows need 4 tiles of at most 32,768 elements
    spec = ModelSpec(input=(1, 40, 40), layers=(Conv(filters=2, kernel=3, padding=1), TANH, Dense(units=2)))
    weights, images, labels = batch_of(spec, 8, np.float64)
    expected, expected_loss, _ = reference.gradient(spec, weights, images, labels, 1.0)
    out, loss_sum, _ = kernel_gradient_64(spec, weights, images, labels, 1.0)
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-10)
    assert loss_sum == pytest.approx(expected_loss, rel=1e-10)


@pytest.mark.parametrize("spec", [MNIST, *SMALL.values()])
def test_gradient_repeated_over_poisoned_and_larger_workspaces_is_bit_identical(spec):
    model = Model(spec)
    weights, images, labels = batch_of(spec, 7)
    results = []
    for capacity, poison in ((7, 0.0), (7, np.nan), (7, -np.inf), (20, np.nan), (7, None)):
        workspace = model.workspace(capacity)
        if poison is not None:
            workspace.buffer[:] = poison
        out = np.full_like(weights, np.nan)
        loss_sum, correct = model.gradient(weights, images, labels, out, workspace, 0.1)
        results.append((out.tobytes(), loss_sum, correct))
    assert len(set(results)) == 1
    assert np.isfinite(out).all()


@pytest.mark.parametrize("spec", [MNIST, *SMALL.values()])
def test_gradient_of_images_with_nan_has_nan_loss(spec):
    model = Model(spec)
    weights, images, labels = batch_of(spec, 4)
    images[2, 0, 0, 0] = np.nan
    loss_sum, _ = model.gradient(weights, images, labels, np.empty_like(weights), model.workspace(4), 1.0)
    assert math.isnan(loss_sum)


def test_gradient_of_nan_weights_has_nan_loss_and_gradient():
    model = Model(MNIST)
    _, images, labels = batch_of(MNIST, 4)
    out = np.zeros(model.n_weights, np.float32)
    weights = np.full(model.n_weights, np.nan, np.float32)
    loss_sum, _ = model.gradient(weights, images, labels, out, model.workspace(4), 1.0)
    assert math.isnan(loss_sum)
    assert np.isnan(out).all()


def test_gradient_of_infinite_image_has_nan_loss():
    model = Model(SMALL["dense_only"])
    weights, images, labels = batch_of(model.spec, 2)
    images[1] = np.inf
    weights[:12] = 1
    loss_sum, _ = model.gradient(weights, images, labels, np.empty_like(weights), model.workspace(2), 1.0)
    assert math.isnan(loss_sum)


def test_relu_of_special_values_keeps_nan_and_infinity():
    target = np.empty(5, np.float32)
    source = np.array([np.nan, np.inf, -np.inf, -1, 2], np.float32)
    activate(1, np.float32(0.5), source, target)
    np.testing.assert_array_equal(target, [np.nan, np.inf, 0, 0, 2.5])


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_max_pool_of_window_with_nan_is_nan(place):
    spec = ModelSpec(input=(1, 2, 2), layers=(MaxPool(size=2), Dense(units=1)))
    images = np.array([5, 7, 6, 8], np.float64)
    images[place] = np.nan
    program, size = compile_program(spec, 1)
    logits = network.forward(program, read_only(np.array([1.0, 0.0])), read_only(images.reshape(1, 4)), np.empty(size))
    assert math.isnan(logits[0, 0])


def test_softmax_of_huge_logits_does_not_overflow():
    logits = np.array([[1000, -1000], [1000, 0], [-1000, -1000]], np.float32)
    probabilities = np.empty_like(logits)
    loss.softmax(logits, probabilities)
    np.testing.assert_array_equal(probabilities, [[0.5, 0], [0.5, 1], [0, 0]])


def test_cross_entropy_of_known_logits_is_as_worked_out():
    # image 0: softmax (3/4, 1/4), label 1; image 1: a tie, which the lower class wins; image 2: certain and right
    logits = np.array([[math.log(3), 2, -1000], [0, 2, 1000]], np.float32)
    predictions = np.empty(3, np.int64)
    loss_sum, correct = loss.cross_entropy(logits, read_only(np.array([1, 0, 1])), predictions)
    assert loss_sum == pytest.approx(math.log(4) + math.log(2), rel=1e-6)
    assert correct == 2
    assert predictions.tolist() == [0, 0, 1]


def test_gradient_through_max_pool_of_equal_values_goes_to_the_first():
    spec = ModelSpec(input=(2, 2, 2), layers=(Conv(filters=1, kernel=1), MaxPool(size=2), Dense(units=2)))
    # every pixel sums to 1, so all four tie; only the first has channels (1, 0)
    images = np.array([[1, 0, 0, 0], [0, 1, 1, 1]], np.float64).reshape(1, 2, 2, 2)
    weights = np.array([1.0, 1.0, 0.0, 2.0, 0.0, 0.0, 2.0])
    # logits (2, 2): delta (-1/2, 1/2) for label 0, times the dense weights (2, 0) is -1 at the winner
    expected = [-1, 0, -1, -0.5, 0.5, -0.5, 0.5]
    labels = np.array([0])
    out, loss_sum, correct = kernel_gradient_64(spec, weights, images, labels, 1.0)
    np.testing.assert_allclose(out, expected, atol=1e-15)
    np.testing.assert_allclose(reference.gradient(spec, weights, images, labels, 1.0)[0], expected, atol=1e-15)
    assert loss_sum == pytest.approx(math.log(2))
    assert correct == 1
