import math
import threading

import numpy as np
import pytest
from dnn_networks import FURTHER, MNIST, RELU, SMALL, batch_of

from operators.dnn import BatchNorm, Conv, Dense, Model, ModelSpec, reference
from operators.dnn.kernels import network

NONE = np.zeros(0, np.float32)


def wide(init):
    # fan-in 4 * 9 = 36 and fan-out 64 * 9 = 576 for the convolution; 64 and 100 for the dense layer
    return Model(ModelSpec(input=(4, 3, 3), layers=(Conv(filters=64, kernel=3), RELU, Dense(units=100)), init=init))


def initial_arrays(init):
    model = wide(init)
    return model.views(model.initial(np.random.default_rng(5)))


def moved(model):
    """Statistics that are not those of the start."""
    return model.initial_statistics() + np.linspace(0.5, 1, model.n_statistics, dtype=np.float32)


def test_views_of_vector_share_its_memory():
    model = Model(MNIST)
    vector = np.zeros(model.n_weights, np.float32)
    views = model.views(vector)
    views["conv2.weight"][0, 0, 0, 1] = 7
    views["dense2.bias"][-1] = 8
    assert np.flatnonzero(vector).tolist() == [261, 59_589]
    assert vector[261] == 7
    assert all(np.shares_memory(view, vector) for view in views.values())
    assert sum(view.size for view in views.values()) == 59_590


def test_gradient_of_shards_adds_up_to_that_of_the_batch():
    model = Model(MNIST)
    weights = model.initial(np.random.default_rng(0))
    _, images, labels = batch_of(MNIST, 20)
    workspace = model.workspace(20)
    whole, total = np.empty_like(weights), np.zeros_like(weights)
    whole_loss, whole_correct = model.gradient(
        weights, images, labels, whole, workspace, 1 / 20, statistics=NONE, seed=0
    )
    loss_sum, correct = 0.0, 0
    for begin, end in ((0, 7), (7, 8), (8, 8), (8, 20)):
        part = np.full_like(weights, np.nan)
        result = model.gradient(
            weights, images[begin:end], labels[begin:end], part, workspace, 1 / 20, statistics=NONE, seed=0
        )
        total += part
        loss_sum, correct = loss_sum + result[0], correct + result[1]
    assert np.abs(total - whole).max() < 1e-6 * np.abs(whole).max()
    assert loss_sum == pytest.approx(whole_loss, rel=1e-6)
    assert correct == whole_correct


def test_gradient_on_two_threads_equals_that_on_one():
    model = Model(MNIST)
    weights = model.initial(np.random.default_rng(0))
    _, images, labels = batch_of(MNIST, 16)
    alone = np.empty_like(weights)
    model.gradient(weights, images, labels, alone, model.workspace(16), 1.0, statistics=NONE, seed=0)
    outs = [np.empty_like(weights) for _ in range(2)]

    def compute(out):
        workspace = model.workspace(16)
        for _ in range(5):
            model.gradient(weights, images, labels, out, workspace, 1.0, statistics=NONE, seed=0)

    threads = [threading.Thread(target=compute, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(out.tobytes() == alone.tobytes() for out in outs)


def test_gradient_followed_by_steps_learns_to_tell_two_images_apart():
    model = Model(SMALL["conv_relu_non_square"])
    weights = model.initial(np.random.default_rng(2))
    _, images, labels = batch_of(model.spec, 6)
    workspace, out = model.workspace(6), np.empty_like(weights)
    first, _ = model.gradient(weights, images, labels, out, workspace, 1 / 6, statistics=NONE, seed=0)
    for _ in range(200):
        weights -= 0.3 * out
        last, correct = model.gradient(weights, images, labels, out, workspace, 1 / 6, statistics=NONE, seed=0)
    assert last < 0.1 * first
    assert correct == 6


def test_gradient_of_read_only_arrays_is_that_of_writable_ones():
    model = Model(SMALL["dense_only"])
    weights, images, labels = batch_of(model.spec, 3)
    out, again = np.empty_like(weights), np.empty_like(weights)
    model.gradient(weights, images, labels, out, model.workspace(3), 1.0, statistics=NONE, seed=0)
    frozen = np.frombuffer(images.tobytes(), np.float32).reshape(images.shape)
    model.gradient(weights, frozen, labels, again, model.workspace(3), 1.0, statistics=NONE, seed=0)
    assert not frozen.flags.writeable
    assert out.tobytes() == again.tobytes()


def test_evaluate_and_predict_agree_with_reference():
    model = Model(SMALL["pool_drops_edge"])
    weights, images, labels = batch_of(model.spec, 9)
    logits = reference.forward(model.spec, weights.astype(np.float64), images.astype(np.float64))[-1][:, :, 0, 0]
    powers = np.exp(logits)
    expected = powers / powers.sum(1, keepdims=True)
    workspace = model.workspace(12)
    loss_sum, correct, predictions = model.evaluate(weights, images, labels, workspace, statistics=NONE)
    probabilities = model.predict(weights, images, workspace, statistics=NONE)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-5, atol=1e-6)
    assert probabilities.shape == (9, 3)
    assert probabilities.dtype == np.float32
    assert predictions.tolist() == logits.argmax(1).tolist()
    assert correct == int((logits.argmax(1) == labels).sum())
    assert loss_sum == pytest.approx(-np.log(expected[np.arange(9), labels]).sum(), rel=1e-5)


def test_batch_of_no_images_has_zero_loss_and_gradient():
    model = Model(SMALL["dense_only"])
    weights, images, labels = batch_of(model.spec, 0)
    out = np.full_like(weights, np.nan)
    workspace = model.workspace(1)
    assert model.gradient(weights, images, labels, out, workspace, 1.0, statistics=NONE, seed=0) == (0.0, 0)
    assert not out.any()
    assert model.evaluate(weights, images, labels, workspace, statistics=NONE)[:2] == (0.0, 0)
    assert model.predict(weights, images, workspace, statistics=NONE).shape == (0, 4)


def test_gradient_moves_the_statistics_as_the_reference_does():
    model = Model(FURTHER["residual_strided"])
    weights, images, labels = batch_of(model.spec, 6)
    statistics = moved(model)
    expected = reference.advanced(model.spec, weights.astype(np.float64), images, statistics)
    model.gradient(
        weights, images, labels, np.empty_like(weights), model.workspace(6), 1.0, statistics=statistics, seed=0
    )
    np.testing.assert_allclose(statistics, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(statistics - moved(model)).min() > 0


def test_gradient_of_no_images_leaves_the_statistics():
    model = Model(FURTHER["residual_strided"])
    weights, images, labels = batch_of(model.spec, 0)
    statistics, out = moved(model), np.full_like(weights, np.nan)
    result = model.gradient(weights, images, labels, out, model.workspace(1), 1.0, statistics=statistics, seed=0)
    assert result == (0.0, 0)
    assert not out.any()
    assert statistics.tobytes() == moved(model).tobytes()


def test_evaluate_and_predict_use_the_statistics_and_only_read_them():
    model = Model(FURTHER["residual_strided"])
    weights, images, labels = batch_of(model.spec, 5)
    model.compile()
    compiled = len(network.run.signatures)
    statistics, workspace = moved(model), model.workspace(5)
    statistics.flags.writeable = False
    outputs = reference.forward(
        model.spec, weights.astype(np.float64), images.astype(np.float64), statistics=statistics
    )
    powers = np.exp(outputs[-1][:, :, 0, 0])
    expected = powers / powers.sum(1, keepdims=True)
    probabilities = model.predict(weights, images, workspace, statistics=statistics)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-4, atol=1e-6)
    loss_sum, _, predictions = model.evaluate(weights, images, labels, workspace, statistics=statistics)
    assert loss_sum == pytest.approx(-np.log(expected[np.arange(5), labels]).sum(), rel=1e-4)
    assert predictions.tolist() == expected.argmax(1).tolist()
    other = model.predict(weights, images, workspace, statistics=model.initial_statistics())
    assert np.abs(other - probabilities).max() > 0.01
    assert len(network.run.signatures) == compiled


def test_initial_uniform_fills_the_range_set_by_fan_in():
    arrays = initial_arrays("uniform")
    for name, fan_in in (("conv1.weight", 36), ("conv1.bias", 36), ("dense1.weight", 64), ("dense1.bias", 64)):
        bound = 1 / math.sqrt(fan_in)
        assert 0.9 * bound < np.abs(arrays[name]).max() <= bound * (1 + 1e-6)
    assert arrays["dense1.weight"].std() == pytest.approx(1 / math.sqrt(3 * 64), rel=0.03)


def test_initial_he_has_variance_two_over_fan_in_and_no_bias():
    arrays = initial_arrays("he")
    assert arrays["conv1.weight"].std() == pytest.approx(math.sqrt(2 / 36), rel=0.05)
    assert arrays["dense1.weight"].std() == pytest.approx(math.sqrt(2 / 64), rel=0.03)
    assert abs(arrays["dense1.weight"].mean()) < 0.01
    assert not arrays["conv1.bias"].any()
    assert not arrays["dense1.bias"].any()


def test_initial_glorot_fills_the_range_set_by_both_fans():
    arrays = initial_arrays("glorot")
    for name, bound in (("conv1.weight", math.sqrt(6 / (36 + 576))), ("dense1.weight", math.sqrt(6 / 164))):
        assert 0.99 * bound < np.abs(arrays[name]).max() <= bound * (1 + 1e-6)
    assert not arrays["dense1.bias"].any()


def test_initial_of_one_seed_is_one_vector():
    model = wide("uniform")
    first, again, other = (model.initial(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.dtype == np.float32
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()


def test_compile_makes_the_next_calls_compile_nothing():
    model = Model(SMALL["one_pixel"])
    model.compile()
    before = len(network.run.signatures)
    weights, images, labels = batch_of(MNIST, 2)
    mnist = Model(MNIST)
    mnist.gradient(weights, images, labels, np.empty_like(weights), mnist.workspace(2), 1.0, statistics=NONE, seed=0)
    assert len(network.run.signatures) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weights": np.zeros(5, np.float32)},
            r"weights must be float32 of shape \(52,\), got float32 of shape \(5,\)",
        ),
        ({"weights": np.zeros(52)}, r"weights must be float32.*got float64"),
        ({"images": np.zeros((2, 12), np.float32)}, r"images must be float32 of shape \(2, 3, 2, 2\).*\(2, 12\)"),
        ({"images": np.zeros((2, 2, 2, 3), np.float32).transpose(0, 3, 1, 2)}, "images must be C-contiguous"),
        ({"images": np.zeros((9, 3, 2, 2), np.float32)}, "9 images exceed the workspace's 2"),
        ({"labels": np.array([0, 4])}, "0 <= label < 4, got 0 to 4"),
        ({"labels": np.array([-1, 0])}, "0 <= label < 4, got -1 to 0"),
        ({"labels": np.array([0, 1], np.int32)}, "labels must be int64"),
        ({"out": np.zeros(3, np.float32)}, r"out must be float32 of shape \(52,\)"),
        ({"out": np.frombuffer(bytes(208), np.float32)}, "out is read-only"),
        ({"statistics": np.zeros(2, np.float32)}, r"statistics must be float32 of shape \(0,\), got.*\(2,\)"),
        ({"workspace": Model(SMALL["one_class"]).workspace(2)}, "workspace belongs to another network"),
    ],
)
def test_gradient_of_bad_argument_says_what_was_expected(change, message):
    model = Model(ModelSpec(input=(3, 2, 2), layers=(Dense(units=4),)))
    arguments = {
        "weights": np.zeros(52, np.float32),
        "images": np.zeros((2, 3, 2, 2), np.float32),
        "labels": np.zeros(2, np.int64),
        "out": np.zeros(52, np.float32),
        "workspace": model.workspace(2),
        "scale": 1.0,
        "statistics": NONE,
        "seed": 0,
    }
    with pytest.raises(ValueError, match=message):
        model.gradient(**(arguments | change))


def test_gradient_of_a_label_that_is_no_class_changes_nothing():
    model = Model(ModelSpec(input=(3, 2, 2), layers=(BatchNorm(), Dense(units=4))))
    weights, images, _ = batch_of(model.spec, 2)
    out, statistics = np.full(len(weights), 7, np.float32), model.initial_statistics()
    before = statistics.copy()
    with pytest.raises(ValueError, match="got 1 to 4"):
        model.gradient(
            weights, images, np.array([1, 4]), out, model.workspace(2), 1.0, statistics=statistics, seed=0
        )  # fmt: skip
    assert (out == 7).all()
    np.testing.assert_array_equal(statistics, before)


@pytest.mark.parametrize("labels", [[0, 4], [-1, 0]])
def test_evaluation_of_a_label_that_is_no_class_says_so(labels):
    model = Model(ModelSpec(input=(3, 2, 2), layers=(Dense(units=4),)))
    weights, images, _ = batch_of(model.spec, 2)
    with pytest.raises(ValueError, match=f"0 <= label < 4, got {labels[0]} to {labels[1]}"):
        model.evaluate(weights, images, np.array(labels), model.workspace(2), statistics=NONE)


def test_workspace_of_no_images_is_refused():
    with pytest.raises(ValueError, match="batch=0"):
        Model(SMALL["dense_only"]).workspace(0)


def test_workspace_buffer_is_aligned_to_a_cache_line():
    assert Model(MNIST).workspace(3).buffer.ctypes.data % 64 == 0
