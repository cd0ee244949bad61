import math

import numpy as np
import pytest
from dnn_networks import FURTHER, RELU, SMALL, TANH, any_network, batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.dnn import (
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
from operators.dnn.masks import uniform_bits

BOTH = SMALL | FURTHER


def numerical_gradient(spec, weights, images, labels, scale, seed=0):
    step = 1e-6
    result = np.empty_like(weights)
    for i in range(weights.size):
        losses = []
        for sign in (1, -1):
            moved = weights.copy()
            moved[i] += sign * step
            losses.append(reference.loss(spec, moved, images, labels, seed=seed))
        result[i] = scale * (losses[0] - losses[1]) / (2 * step)
    return result


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", BOTH)
def test_gradient_of_reference_equals_finite_differences(name, batch):
    spec = BOTH[name]
    weights, images, labels = batch_of(spec, batch, np.float64)
    out, _, _ = reference.gradient(spec, weights, images, labels, 0.5, seed=9)
    expected = numerical_gradient(spec, weights, images, labels, 0.5, seed=9)
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-8)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(spec=any_network(), batch=st.integers(1, 4), seed=st.integers(0, 2**64 - 1))
def test_gradient_of_any_small_network_equals_finite_differences(spec, batch, seed):
    weights, images, labels = batch_of(spec, batch, np.float64, seed % 1000)
    out, _, _ = reference.gradient(spec, weights, images, labels, 1.0, seed=seed)
    expected = numerical_gradient(spec, weights, images, labels, 1.0, seed)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-7)


def test_forward_of_conv_and_pool_gives_worked_out_values():
    spec = ModelSpec(input=(1, 3, 3), layers=(Conv(filters=1, kernel=2), MaxPool(size=2), Dense(units=2)))
    # kernel [[1, 2], [3, 4]] + 0.5 on 0..8: 1*0 + 2*1 + 3*3 + 4*4 = 27 at the top left, then 37, 57, 67
    weights = np.array([1, 2, 3, 4, 0.5, 2, -1, 0, 3])
    images = np.arange(9.0).reshape(1, 1, 3, 3)
    _, conv, pool, logits = reference.forward(spec, weights, images)
    assert conv.tolist() == [[[[27.5, 37.5], [57.5, 67.5]]]]
    assert pool.tolist() == [[[[67.5]]]]
    assert logits.ravel().tolist() == [135.0, -64.5]


def test_gradient_of_one_dense_layer_gives_worked_out_values():
    spec = ModelSpec(input=(1, 1, 2), layers=(Dense(units=2),))
    # logits (ln 3, 0): softmax (3/4, 1/4), so with label 1 the delta is (3/4, -3/4) and the loss ln 4
    weights = np.array([math.log(3), 0, 0, 0, 0, 0])
    out, loss_sum, correct = reference.gradient(spec, weights, np.array([[[[1.0, 2.0]]]]), np.array([1]), 2.0)
    np.testing.assert_allclose(out, [1.5, 3.0, -1.5, -3.0, 1.5, -1.5], rtol=1e-12)
    assert loss_sum == pytest.approx(math.log(4))
    assert correct == 0


def test_forward_of_average_pools_gives_worked_out_values():
    spec = ModelSpec(input=(2, 3, 4), layers=(AvgPool(size=2, stride=1), GlobalAvgPool(), Dense(units=1)))
    images = np.arange(24.0).reshape(1, 2, 3, 4)
    _, average, everything, logits = reference.forward(spec, np.array([1.0, 10, 100]), images)
    # the window at (0, 0) holds 0, 1, 4 and 5; each step to the right adds 1, each down 4, each channel 12
    assert average[0, 0].tolist() == [[2.5, 3.5, 4.5], [6.5, 7.5, 8.5]]
    assert average[0, 1].tolist() == [[14.5, 15.5, 16.5], [18.5, 19.5, 20.5]]
    assert everything.tolist() == [[[[5.5]], [[17.5]]]]
    assert logits.tolist() == [[[[5.5 + 175 + 100]]]]


def test_gradient_through_residual_adds_that_of_body_and_shortcut():
    # x = 2; conv doubles and adds 1: 5; the body triples: 15, so y = 20
    conv, body = Conv(filters=1, kernel=1), Conv(filters=1, kernel=1)
    spec = ModelSpec(input=(1, 1, 1), layers=(conv, Residual(layers=(body,)), Dense(units=2)))
    weights = np.array([2.0, 1, 3, 0, 1, 0, math.log(3) - 20, 0])
    images = np.array([[[[2.0]]]])
    assert [y.item() for y in reference.forward(spec, weights, images)[:3]] == [2, 5, 20]
    # logits (20 + ln 3 - 20, 0): softmax (3/4, 1/4), so with label 1 the delta is (3/4, -3/4), and at y 3/4;
    # at the body's weight 3/4 * 5 and its bias 3/4; at conv's output 3/4 * (3 + 1), its weight that times 2
    out, _, _ = reference.gradient(spec, weights, images, np.array([1]), 1.0)
    np.testing.assert_allclose(out, [6, 3, 3.75, 0.75, 15, -15, 0.75, -0.75])


def norm_network(**fields):
    return ModelSpec(input=(2, 1, 2), layers=(BatchNorm(**fields), Dense(units=1)))


NORM_IMAGES = np.array([[[[1.0, 3]], [[10, 10]]], [[[5, 7]], [[10, 10]]]])
"""Channel 0 holds 1, 3, 5 and 7: mean 4, squared deviations 20, so variances 5 and 20/3; channel 1 is always 10."""


def test_statistics_after_a_batch_have_moved_by_the_momentum():
    weights = np.zeros(4 + 5)
    before = np.array([0, 2, 1, 3.0])
    after = reference.advanced(norm_network(momentum=0.25), weights, NORM_IMAGES, before)
    np.testing.assert_allclose(after, [1, 0.75 * 2 + 2.5, 0.75 + 0.25 * 20 / 3, 0.75 * 3], rtol=1e-14)
    assert before.tolist() == [0, 2, 1, 3]


def test_statistics_after_a_batch_of_one_value_per_channel_have_the_old_variance():
    spec = ModelSpec(input=(2, 1, 1), layers=(BatchNorm(), Dense(units=1)))
    image = np.array([[[[4.0]], [[-2]]]])
    after = reference.advanced(spec, np.zeros(4 + 3), image, np.array([0, 0, 5, 6.0]))
    np.testing.assert_allclose(after, [0.4, -0.2, 5, 6], rtol=1e-14)


def test_gradient_of_batch_norm_of_one_value_per_channel_sees_its_bias_only():
    spec = ModelSpec(input=(1, 1, 1), layers=(BatchNorm(), Dense(units=2)))
    # the output is the bias 2 whatever the image: logits (2 a, 0) with 2 a = ln 3, so delta (3/4, -3/4) for label 1
    weights = np.array([7, 2, math.log(3) / 2, 0, 0, 0])
    out, loss_sum, _ = reference.gradient(spec, weights, np.array([[[[1e6]]]]), np.array([1]), 1.0)
    assert loss_sum == pytest.approx(math.log(4))
    np.testing.assert_allclose(out, [0, 0.375 * math.log(3), 1.5, -1.5, 0.75, -0.75], atol=1e-12)


def test_forward_of_batch_norm_takes_the_running_statistics():
    spec = norm_network(epsilon=1.0)
    weights = np.array([2, 1, -1, 100, 0, 0, 0, 0, 0.0])
    normalised = reference.forward(spec, weights, NORM_IMAGES, statistics=np.array([3, 6, 3, 15.0]))[1]
    # 2 (x - 3) / sqrt(3 + 1) - 1 and (10 - 6) / sqrt(15 + 1) + 100
    assert normalised.tolist() == [[[[-3, -1]], [[101, 101]]], [[[1, 3]], [[101, 101]]]]
    # without statistics 0 and 1: 2 (x - 0) / sqrt(1 + 1) - 1
    first = reference.forward(spec, weights, NORM_IMAGES)[1]
    np.testing.assert_allclose(first[0, 0], [[math.sqrt(2) - 1, 3 * math.sqrt(2) - 1]])


def test_forward_drops_nothing():
    spec = ModelSpec(input=(1, 5, 5), layers=(Dropout(rate=0.9), Dense(units=2)))
    weights, images, _ = batch_of(spec, 2, np.float64)
    assert reference.forward(spec, weights, images)[1].tolist() == images.tolist()


def test_gradient_through_dropout_keeps_and_scales_what_the_mask_says():
    # the dropout within the residual's shortcut is step 2, after the activation and the body's activation
    shortcut = (Dropout(rate=0.75),)
    layers = (RELU, Residual(layers=(TANH,), shortcut=shortcut), Dense(units=2))
    spec = ModelSpec(input=(2, 3, 4), layers=layers)
    images = np.ones((2, 2, 3, 4))
    out, _, _ = reference.gradient(spec, np.zeros(50), images, np.array([1, 1]), 1.0, seed=77)
    kept = uniform_bits(77, 2, [0, 1], 24) >= 3 * 2**30
    # delta is (1/2, -1/2) for each image, and the dense layer's input tanh(1), plus 4 where it is kept
    inputs = (math.tanh(1) + 4 * kept).sum(0)
    np.testing.assert_allclose(out, [*(inputs / 2), *(-inputs / 2), 1, -1], rtol=1e-14)
    assert 0 < kept.sum() < 24


def test_gradient_of_other_seed_drops_others():
    spec = FURTHER["dropout_first_and_twice"]
    weights, images, labels = batch_of(spec, 3, np.float64)
    losses = {reference.gradient(spec, weights, images, labels, 1.0, seed=seed)[1] for seed in (1, 1, 2, 3)}
    assert len(losses) == 3


def test_gradient_in_float32_stays_in_float32():
    spec = FURTHER["residual_nested_and_in_shortcut"]
    weights, images, labels = batch_of(spec, 3)
    out, _, _ = reference.gradient(spec, weights, images, labels, 1.0)
    assert out.dtype == np.float32
    assert {y.dtype for y in reference.forward(spec, weights, images)} == {np.dtype(np.float32)}
