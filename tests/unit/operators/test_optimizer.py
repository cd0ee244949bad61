import numpy as np
import pytest
from pydantic import ValidationError

from operators.optimizer import Sgd

SETTINGS = [
    {},
    {"weight_decay": 0.01},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.01},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
]


def vector(*values):
    return np.array(values, np.float32)


def directions(sgd, gradients, weights):
    velocity, found = sgd.velocity(len(weights)), []
    for gradient in gradients:
        direction = gradient.copy()
        sgd.direct(direction, weights, velocity)
        found.append(direction.tolist())
    return found, velocity.tolist()


def test_direct_without_momentum_and_decay_is_the_gradient():
    assert directions(Sgd(), [vector(1, -2), vector(3, 4)], vector(5, 6)) == ([[1, -2], [3, 4]], [])


def test_direct_weight_decay_adds_a_share_of_the_weights():
    assert directions(Sgd(weight_decay=0.5), [vector(1, -2)], vector(4, 8)) == ([[3, 2]], [])


def test_direct_momentum_adds_up_halves():
    # v = 1, 1/2 + 1, 3/4 + 1
    found, velocity = directions(Sgd(momentum=0.5), [vector(1, -2)] * 3, vector(9, 9))
    assert found == [[1, -2], [1.5, -3], [1.75, -3.5]]
    assert velocity == [1.75, -3.5]


def test_direct_nesterov_looks_half_a_velocity_ahead():
    # v as above; direction = 1 + v / 2
    found, velocity = directions(Sgd(momentum=0.5, nesterov=True), [vector(1, -2)] * 3, vector(9, 9))
    assert found == [[1.5, -3], [1.75, -3.5], [1.875, -3.75]]
    assert velocity == [1.75, -3.5]


def test_direct_momentum_sums_decayed_gradients():
    # 1 + 4/2 = 3, then 3/2 + 3
    sgd = Sgd(momentum=0.5, weight_decay=0.5)
    assert directions(sgd, [vector(1)] * 2, vector(4)) == ([[3], [4.5]], [4.5])


@pytest.mark.parametrize("settings", SETTINGS)
def test_direct_equals_numpy_bit_for_bit(settings):
    sgd, rng = Sgd(**settings), np.random.default_rng(0)
    mu, decay = np.float32(sgd.momentum), np.float32(sgd.weight_decay)
    weights, velocity, want = rng.normal(size=1001).astype(np.float32), sgd.velocity(1001), np.zeros(1001, np.float32)
    for _ in range(5):
        gradient = rng.normal(size=1001).astype(np.float32)
        expected = gradient + decay * weights
        if sgd.momentum:
            want = mu * want + expected
            expected = expected + mu * want if sgd.nesterov else want
        sgd.direct(gradient, weights, velocity)
        assert np.array_equal(gradient, expected)
        weights -= np.float32(0.1) * gradient
    assert np.array_equal(velocity, want[: len(velocity)])


@pytest.mark.parametrize("settings", SETTINGS)
def test_direct_equals_torch(settings):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    sgd, rng = Sgd(**settings), np.random.default_rng(1)
    weights, velocity = rng.normal(size=100).astype(np.float32), sgd.velocity(100)
    theirs = torch.nn.Parameter(torch.tensor(weights.copy()))
    optimizer = torch.optim.SGD([theirs], lr=0.1, **settings)
    for lr in (0.1, 0.1, 0.05, 0.05, 0.01):
        gradient = rng.normal(size=100).astype(np.float32)
        theirs.grad = torch.tensor(gradient.copy())
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        sgd.direct(gradient, weights, velocity)
        weights -= np.float32(lr) * gradient
        np.testing.assert_allclose(weights, theirs.detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", [{"momentum": 1}, {"momentum": -0.1}, {"weight_decay": -1}, {"damping": 1}])
def test_sgd_impossible_values_are_refused(settings):
    with pytest.raises(ValidationError):
        Sgd(**settings)
