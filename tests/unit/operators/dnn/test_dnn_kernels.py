import math
import threading

import numpy as np
import pytest
from dnn_networks import FURTHER, MNIST, RELU, SIGMOID, SMALL, TANH, any_network, batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.dnn import BatchNorm, Conv, Dense, Dropout, MaxPool, Model, ModelSpec, reference
from operators.dnn.init import initial_statistics
from operators.dnn.kernels import loss, network
from operators.dnn.kernels.activation import activate
from operators.dnn.program import CHUNK, compile_program

NETWORKS = SMALL | FURTHER


def read_only(array):
    view = array.view()
    view.flags.writeable = False
    return view


def run_64(spec, weights, images, labels=(), *, statistics=None, scale=1.0, seed=0, chunk=None):
    """Run the kernels compiled for float64 over a workspace of NaN: training where there are labels, else evaluating.

    Returns the gradient, the summed loss, the number of correct predictions, and the logits.
    """
    program = compile_program(spec, len(images), np.float64)
    training = len(labels) > 0
    out = np.full_like(weights, np.nan)
    logits = np.full((len(images), spec.shapes()[-1][0]), np.nan)
    result = network.run(
        program.table,
        read_only(weights),
        initial_statistics(spec).astype(np.float64) if statistics is None else statistics,
        read_only(images.reshape(len(images), -1)),
        read_only(np.array(labels, np.int64)),
        out,
        logits,
        np.full(program.elements, np.nan),
        program.chunk if chunk is None else chunk,
        scale,
        seed,
        training,
    )
    return out, *result, logits


def kernel_gradient_64(spec, weights, images, labels, scale, seed=0):
    return run_64(spec, weights, images, labels, scale=scale, seed=seed)[:3]


def model_gradient(spec, weights, images, labels, scale, workspace=None, seed=0):
    """The gradient in float32, the summed loss and the number of correct predictions, of `Model.gradient`."""
    model = Model(spec)
    out = np.full_like(weights, np.nan)
    workspace = model.workspace(max(1, len(images))) if workspace is None else workspace
    statistics = model.initial_statistics()
    return out, *model.gradient(weights, images, labels, out, workspace, scale, statistics=statistics, seed=seed)


@pytest.mark.parametrize("batch", [1, 2, 5, 17])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_in_float32_equals_reference(name, batch):
    spec = NETWORKS[name]
    weights, images, labels = batch_of(spec, batch)
    expected, expected_loss, expected_correct = reference.gradient(
        spec, weights.astype(np.float64), images.astype(np.float64), labels, 1 / batch, seed=5
    )
    out, loss_sum, correct = model_gradient(spec, weights, images, labels, 1 / batch, seed=5)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=5e-6)
    assert loss_sum == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
    assert correct == expected_correct


@pytest.mark.parametrize("batch", [1, 7, 33, 64])
def test_gradient_of_mnist_network_equals_reference(batch):
    _, images, labels = batch_of(MNIST, batch)
    weights = Model(MNIST).initial(np.random.default_rng(3))
    expected, expected_loss, expected_correct = reference.gradient(
        MNIST, weights.astype(np.float64), images.astype(np.float64), labels, 1 / batch
    )
    out, loss_sum, correct = model_gradient(MNIST, weights, images, labels, 1 / batch)
    assert np.abs(out - expected).max() < 1e-5 * np.abs(expected).max()
    assert loss_sum == pytest.approx(expected_loss, rel=1e-5)
    assert correct == expected_correct


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_in_float64_equals_finite_differences(name):
    spec = NETWORKS[name]
    weights, images, labels = batch_of(spec, 3, np.float64)
    out, _, _ = kernel_gradient_64(spec, weights, images, labels, 1.0, seed=9)
    step = 1e-6
    for i in range(weights.size):
        losses = []
        for sign in (1, -1):
            moved = weights.copy()
            moved[i] += sign * step
            losses.append(kernel_gradient_64(spec, moved, images, labels, 1.0, seed=9)[1])
        assert out[i] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5, abs=1e-7)


@st.composite
def plain_networks(draw):
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)))
    layers, last = [], shape
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["conv", "pool", "dense", "activation"]))
        side = min(last[1:])
        if kind == "conv":
            kernel = draw(st.integers(1, min(side, 4)))
            padding, stride = draw(st.integers(0, kernel - 1)), draw(st.integers(1, 3))
            # more filters than a block of the kernels has rows
            filters = draw(st.integers(1, 14))
            layer = Conv(filters=filters, kernel=kernel, padding=padding, stride=stride)
        elif kind == "pool":
            layer = MaxPool(size=draw(st.integers(1, min(side, 3))), stride=draw(st.none() | st.integers(1, 3)))
        elif kind == "dense":
            layer = Dense(units=draw(st.integers(1, 14)))
        else:
            layer = draw(st.sampled_from([RELU, SIGMOID, TANH]))
        layers.append(layer)
        last = layer.output_shape(last)
    return ModelSpec(input=shape, layers=(*layers, Dense(units=draw(st.integers(1, 4)))))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    spec=plain_networks() | any_network(),
    batch=st.integers(1, 6) | st.sampled_from([7, 8, 9, 15, 16, 17, 31, 33]),
    seed=st.integers(0, 1000),
)
def test_gradient_of_any_network_equals_reference(spec, batch, seed):
    weights, images, labels = batch_of(spec, batch, np.float64, seed)
    expected, expected_loss, expected_correct = reference.gradient(spec, weights, images, labels, 0.25, seed=seed)
    out, loss_sum, correct = kernel_gradient_64(spec, weights, images, labels, 0.25, seed=seed)
    np.testing.assert_allclose(out, expected, rtol=1e-8, atol=1e-10)
    assert loss_sum == pytest.approx(expected_loss, rel=1e-9, abs=1e-12)
    assert correct == expected_correct


@settings(max_examples=150, deadline=None, derandomize=True)
@given(spec=any_network(), batch=st.integers(1, 9), seed=st.integers(0, 1000))
def test_statistics_and_evaluation_of_any_network_equal_reference(spec, batch, seed):
    weights, images, labels = batch_of(spec, batch, np.float64, seed)
    statistics = initial_statistics(spec).astype(np.float64)
    expected = reference.advanced(spec, weights, images, statistics, seed=seed)
    run_64(spec, weights, images, labels, statistics=statistics, seed=seed)
    np.testing.assert_allclose(statistics, expected, rtol=1e-9, atol=1e-12)
    logits = run_64(spec, weights, images, statistics=statistics)[-1]
    expected_logits = reference.forward(spec, weights, images, statistics=statistics)[-1][:, :, 0, 0]
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 2, 5, 9, 100])
@pytest.mark.parametrize("name", [name for name, spec in NETWORKS.items() if not initial_statistics(spec).size])
def test_gradient_in_chunks_equals_reference(name, chunk):
    spec = NETWORKS[name]
    weights, images, labels = batch_of(spec, 9, np.float64)
    expected, expected_loss, _ = reference.gradient(spec, weights, images, labels, 1.0, seed=4)
    out, loss_sum, _, _ = run_64(spec, weights, images, labels, seed=4, chunk=chunk)
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-11)
    assert loss_sum == pytest.approx(expected_loss, rel=1e-10)


@pytest.mark.parametrize(
    "layers",
    [
        # rows longer than a tile, and tiles of several rows; with and without a border
        (Conv(filters=2, kernel=3, padding=1), TANH),
        (Conv(filters=13, kernel=3), RELU, MaxPool(size=3)),
        (Conv(filters=3, kernel=7, stride=2, padding=3), RELU, MaxPool(size=2), Conv(filters=4, kernel=1), SIGMOID),
        (Conv(filters=2, kernel=6), Conv(filters=17, kernel=1, stride=2)),
    ],
)
def test_gradient_of_wide_conv_in_several_tiles_equals_reference(layers):
    spec = ModelSpec(input=(2, 24, 90), layers=(*layers, Dense(units=2)))
    weights, images, labels = batch_of(spec, 33, np.float64)
    expected, expected_loss, _ = reference.gradient(spec, weights, images, labels, 1.0)
    out, loss_sum, _ = kernel_gradient_64(spec, weights, images, labels, 1.0)
    np.testing.assert_allclose(out, expected, rtol=1e-8, atol=1e-9)
    assert loss_sum == pytest.approx(expected_loss, rel=1e-10)


def test_gradient_of_wide_dense_in_several_tiles_equals_reference():
    # 2,500 inputs need three tiles of 1,024, 150 units three of 64
    spec = ModelSpec(input=(1, 50, 50), layers=(Dense(units=150), TANH, Dense(units=70), TANH, Dense(units=2)))
    weights, images, labels = batch_of(spec, 7, np.float64)
    expected, _, _ = reference.gradient(spec, weights, images, labels, 1.0)
    out, _, _ = kernel_gradient_64(spec, weights, images, labels, 1.0)
    np.testing.assert_allclose(out, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("spec", [MNIST, *NETWORKS.values()])
def test_gradient_repeated_over_poisoned_and_larger_workspaces_is_bit_identical(spec):
    model = Model(spec)
    weights, images, labels = batch_of(spec, CHUNK + 7)
    results = []
    for capacity, poison in ((CHUNK + 7, 0.0), (CHUNK + 7, np.nan), (CHUNK + 7, -np.inf), (80, np.nan), (80, None)):
        workspace = model.workspace(capacity)
        if poison is not None:
            workspace.buffer[:] = poison
        out, loss_sum, correct = model_gradient(spec, weights, images, labels, 0.1, workspace, seed=3)
        results.append((out.tobytes(), loss_sum, correct))
    assert len(set(results)) == 1
    assert np.isfinite(out).all()


def test_gradient_in_two_threads_is_bit_identical():
    weights, images, labels = batch_of(MNIST, 40)
    expected = model_gradient(MNIST, weights, images, labels, 0.1)[0]
    found = {}
    threads = [
        threading.Thread(target=lambda k=k: found.update({k: model_gradient(MNIST, weights, images, labels, 0.1)[0]}))
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[k], expected) for k in range(4))


@pytest.mark.parametrize("spec", [MNIST, *NETWORKS.values()])
def test_gradient_of_images_with_nan_has_nan_loss(spec):
    weights, images, labels = batch_of(spec, 4)
    images[2] = np.nan
    _, loss_sum, _ = model_gradient(spec, weights, images, labels, 1.0)
    assert math.isnan(loss_sum)


def test_gradient_of_nan_weights_has_nan_loss_and_gradient():
    _, images, labels = batch_of(MNIST, 4)
    weights = np.full(Model(MNIST).n_weights, np.nan, np.float32)
    out, loss_sum, _ = model_gradient(MNIST, weights, images, labels, 1.0)
    assert math.isnan(loss_sum)
    assert np.isnan(out).all()


def test_gradient_of_infinite_image_has_nan_loss():
    spec = SMALL["dense_only"]
    weights, images, labels = batch_of(spec, 2)
    images[1] = np.inf
    weights[:12] = 1
    assert math.isnan(model_gradient(spec, weights, images, labels, 1.0)[1])


def test_dropout_of_other_seeds_drops_others_and_evaluation_drops_nothing():
    spec = ModelSpec(input=(1, 8, 8), layers=(Dropout(rate=0.5), Dense(units=2)))
    images, labels = np.ones((1, 1, 8, 8)), np.array([1])
    weights = np.concatenate([np.ones(64), np.zeros(64), [0.0, 0.0]])
    gradients = [kernel_gradient_64(spec, weights, images, labels, 1.0, seed)[0][:64] for seed in (1, 1, 2)]
    # a dropped pixel gives its weight no gradient, a kept one twice that of others
    assert np.array_equal(gradients[0], gradients[1])
    assert not np.array_equal(gradients[0] == 0, gradients[2] == 0)
    assert set(np.unique(np.round(gradients[0] / gradients[0].max(), 12))) == {0.0, 1.0}
    np.testing.assert_array_equal(run_64(spec, weights, images)[-1], [[64.0, 0.0]])


def test_batch_norm_of_one_value_gives_bias_and_keeps_variance():
    spec = ModelSpec(input=(1, 1, 1), layers=(BatchNorm(momentum=0.5), Dense(units=2)))
    statistics = np.array([1.0, 3.0])
    weights = np.array([2.0, 0.25, 1.0, -1.0, 0.0, 0.0])
    out, loss_sum, _, _ = run_64(spec, weights, np.full((1, 1, 1, 1), 5.0), [0], statistics=statistics)
    assert statistics.tolist() == [3.0, 3.0]
    assert loss_sum == pytest.approx(math.log(1 + math.exp(-0.5)))
    assert out[0] == 0  # of the weight: the normalised value is 0


def test_relu_of_special_values_keeps_nan_and_infinity():
    values = np.array([np.nan, np.inf, -np.inf, -1, 2, -0.0], np.float32)
    activate(1, values)
    np.testing.assert_array_equal(values, [np.nan, np.inf, 0, 0, 2, 0])


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("first", [(), (Conv(filters=1, kernel=1),)])
def test_max_pool_of_window_with_nan_is_nan(place, first):
    spec = ModelSpec(input=(1, 2, 2), layers=(*first, MaxPool(size=2), Dense(units=1)))
    images = np.array([5, 7, 6, 8], np.float64)
    images[place] = np.nan
    weights = np.array([1.0, 0.0] * (1 + len(first)))
    assert math.isnan(run_64(spec, weights, images.reshape(1, 1, 2, 2))[-1][0, 0])


def test_softmax_of_huge_logits_does_not_overflow():
    logits = np.array([[1000, 1000, -1000], [-1000, 0, -1000]], np.float32)
    loss.softmax(logits)
    np.testing.assert_array_equal(logits, [[0.5, 0.5, 0], [0, 1, 0]])


def test_cross_entropy_of_known_logits_is_as_worked_out():
    # image 0: softmax (3/4, 1/4), label 1; image 1: a tie, which the lower class wins; image 2: certain and right
    logits = np.array([[math.log(3), 0], [2, 2], [-1000, 1000]], np.float32)
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
