import math

import numpy as np
import pytest

from operators.dnn.evaluation import cross_entropy, softmax


def test_softmax_of_huge_logits_does_not_overflow():
    logits = np.array([[1000, 1000, -1000], [-1000, 0, -1000]], np.float32)
    np.testing.assert_array_equal(softmax(logits), [[0.5, 0.5, 0], [0, 1, 0]])


def test_softmax_of_nan_is_nan_and_stays_float32():
    probabilities = softmax(np.array([[np.nan, 0], [0, 0]], np.float32))
    assert np.isnan(probabilities[0]).all()
    assert probabilities[1].tolist() == [0.5, 0.5]
    assert probabilities.dtype == np.float32


def test_cross_entropy_of_known_logits_is_as_worked_out():
    # image 0: softmax (3/4, 1/4), label 1; image 1: a tie, which the lower class wins; image 2: certain and right
    logits = np.array([[math.log(3), 0], [2, 2], [-1000, 1000]], np.float32)
    loss_sum, correct, predictions = cross_entropy(logits, np.array([1, 0, 1]))
    assert loss_sum == pytest.approx(math.log(4) + math.log(2), rel=1e-6)
    assert correct == 2
    assert predictions.tolist() == [0, 0, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_cross_entropy_of_special_logits_is_nan_and_predicts_them(value):
    loss_sum, correct, predictions = cross_entropy(np.array([[0, value, 1]], np.float32), np.array([1]))
    assert math.isnan(loss_sum)
    assert (correct, predictions.tolist()) == (1, [1])


def test_cross_entropy_of_no_images_is_zero():
    loss_sum, correct, predictions = cross_entropy(np.empty((0, 3), np.float32), np.empty(0, np.int64))
    assert (loss_sum, correct, predictions.shape) == (0.0, 0, (0,))
