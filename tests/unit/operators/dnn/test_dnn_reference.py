import math

import numpy as np
import pytest
from dnn_networks import SMALL, batch_of

from operators.dnn import Conv, Dense, MaxPool, ModelSpec, reference


def numerical_gradient(spec, weights, images, labels, scale):
    step = 1e-6
    result = np.empty_like(weights)
    for i in range(weights.size):
        losses = []
        for sign in (1, -1):
            moved = weights.copy()
            moved[i] += sign * step
            losses.append(reference.gradient(spec, moved, images, labels, 1.0)[1])
        result[i] = scale * (losses[0] - losses[1]) / (2 * step)
    return result


@pytest.mark.parametrize("name", SMALL)
def test_gradient_of_reference_equals_finite_differences(name):
    spec = SMALL[name]
    weights, images, labels = batch_of(spec, 3, np.float64)
    out, _, _ = reference.gradient(spec, weights, images, labels, 0.5)
    np.testing.assert_allclose(out, numerical_gradient(spec, weights, images, labels, 0.5), rtol=1e-6, atol=1e-8)


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
