import numpy as np
import pytest
from pydantic import ValidationError

from operators.optimizer import Sgd, travel

SETTINGS = [
    {},
    {"weight_decay": 0.01},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.01},
    {"momentum": 0.9, "look_ahead": 1},
    {"momentum": 0.9, "look_ahead": 1, "weight_decay": 0.01},
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
    found, velocity = directions(Sgd(momentum=0.5, look_ahead=1), [vector(1, -2)] * 3, vector(9, 9))
    assert found == [[1.5, -3], [1.75, -3.5], [1.875, -3.75]]
    assert velocity == [1.75, -3.5]


def test_direct_momentum_sums_decayed_gradients():
    # 1 + 4/2 = 3, then 3/2 + 3
    sgd = Sgd(momentum=0.5, weight_decay=0.5)
    assert directions(sgd, [vector(1)] * 2, vector(4)) == ([[3], [4.5]], [4.5])


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_step_moves_by_what_direct_gives_and_adds_it_up(setting, scaled):
    sgd, rng, rate = Sgd(**setting, scaled=scaled), np.random.default_rng(0), 0.3
    weights, total = rng.standard_normal((2, 100)).astype(np.float32)
    velocity = sgd.velocity(100)
    for _ in range(3):
        gradient = rng.standard_normal(100).astype(np.float32)
        direction, kept, before = gradient.copy(), velocity.copy(), weights.copy()
        sgd.direct(direction, weights, kept, rate)
        expected = total + direction
        sgd.step(gradient, weights, velocity, total, rate)
        assert total.tolist() == expected.tolist()
        assert velocity.tolist() == kept.tolist()
        assert weights.tolist() == (before - np.float32(1 if scaled else rate) * direction).tolist()


def test_direct_scaled_has_the_rate_in_the_velocity():
    # v = 2 * 1, then 2 / 2 + 4 * 1; the direction is rate + v / 2
    sgd = Sgd(momentum=0.5, look_ahead=1, scaled=True)
    velocity, found = sgd.velocity(1), []
    for rate in (2.0, 4.0):
        direction = vector(1)
        sgd.direct(direction, vector(9), velocity, rate)
        found.append((direction.tolist(), velocity.tolist()))
    assert found == [([3], [2]), ([6.5], [5])]


def test_direct_look_ahead_of_two_steps_takes_both_at_once():
    # v = 1, 3/2, 7/4; direction = (1 + 1/2) + v / 4
    found, velocity = directions(Sgd(momentum=0.5, look_ahead=2), [vector(1, -2)] * 3, vector(9, 9))
    assert found == [[1.75, -3.5], [1.875, -3.75], [1.9375, -3.875]]
    assert velocity == [1.75, -3.5]


@pytest.mark.parametrize("steps", range(6))
def test_direct_look_ahead_weights_are_where_momentum_alone_leads_in_so_many_steps(steps):
    # Integers and halves, so that every sum is exact: after any number of gradients, at changing rates.
    sgd, rng = Sgd(momentum=0.5, look_ahead=steps, scaled=True), np.random.default_rng(steps)
    theta, ahead, velocity, alone = (np.zeros(20, np.float32) for _ in range(4))
    for rate in (1, 2, 1, 4, 2, 1):
        gradient = rng.integers(-8, 8, 20).astype(np.float32)
        alone = alone / 2 + rate * gradient
        theta -= alone
        sgd.direct(gradient, ahead, velocity, rate)
        ahead -= gradient
        coasting, speed = theta.copy(), alone.copy()
        for _ in range(steps):
            speed = speed / 2
            coasting -= speed
        np.testing.assert_array_equal(ahead, coasting)
        np.testing.assert_array_equal(velocity, alone)


def test_direct_look_ahead_without_end_is_plain_at_the_rate_of_the_long_run():
    direction, sgd = vector(1, -2), Sgd(momentum=0.75, look_ahead=10**12, scaled=True)
    sgd.direct(direction, vector(9, 9), vector(3, 3), 0.5)
    assert direction.tolist() == [2, -4]


def test_direct_scaled_without_momentum_is_the_update():
    direction, sgd = vector(1, -2), Sgd(scaled=True, weight_decay=0.5)
    sgd.direct(direction, vector(4, 8), sgd.velocity(2), 0.5)
    assert direction.tolist() == [1.5, 1]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_travel_equals_direct_and_a_subtraction_bit_for_bit(steps):
    rng = np.random.default_rng(4)
    sgd = Sgd(momentum=0.9, look_ahead=steps, weight_decay=0.01, scaled=True)
    one, other = (rng.standard_normal(50, np.float32) for _ in range(2))
    other[:] = one
    velocities = sgd.velocity(50), sgd.velocity(50)
    for rate in (0.1, 0.2, 0.05):
        gradient = rng.standard_normal(50, np.float32)
        travel(one, velocities[0], gradient, momentum=0.9, rate=rate, weight_decay=0.01, look_ahead=steps)
        sgd.direct(gradient, other, velocities[1], rate)
        other -= gradient
        np.testing.assert_array_equal(one, other)


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
            expected = expected + mu * want if sgd.look_ahead else want
        sgd.direct(gradient, weights, velocity)
        assert np.array_equal(gradient, expected)
        weights -= np.float32(0.1) * gradient
    assert np.array_equal(velocity, want[: len(velocity)])


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_velocities_of_weights_without_gradients_become_nothing_and_are_never_subnormal(steps, scaled):
    sgd, velocity = Sgd(momentum=0.6, look_ahead=steps, scaled=scaled), vector(1, -1)
    weights, least = vector(0, 0), np.finfo(np.float32).tiny
    for _ in range(150):  # 0.6 to the power of 136 is below 2^-100
        direction = vector(0, 0)
        sgd.direct(direction, weights, velocity, 0.1)
        assert not np.any((np.abs(direction) > 0) & (np.abs(direction) < least))
    assert velocity.tolist() == [0, 0]


def test_a_velocity_that_is_not_a_number_stays_none():
    velocity = vector(np.nan, np.inf)
    Sgd(momentum=0.5).direct(vector(0, 1), vector(0, 0), velocity)
    assert np.isnan(velocity[0])
    assert np.isinf(velocity[1])


@pytest.mark.parametrize("settings", SETTINGS)
def test_direct_equals_torch(settings):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    sgd, rng = Sgd(**settings), np.random.default_rng(1)
    weights, velocity = rng.normal(size=100).astype(np.float32), sgd.velocity(100)
    theirs = torch.nn.Parameter(torch.tensor(weights.copy()))
    theirs_alone = {key: value for key, value in settings.items() if key != "look_ahead"}
    optimizer = torch.optim.SGD([theirs], lr=0.1, nesterov="look_ahead" in settings, **theirs_alone)
    for lr in (0.1, 0.1, 0.05, 0.05, 0.01):
        gradient = rng.normal(size=100).astype(np.float32)
        theirs.grad = torch.tensor(gradient.copy())
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        sgd.direct(gradient, weights, velocity)
        weights -= np.float32(lr) * gradient
        np.testing.assert_allclose(weights, theirs.detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "settings", [{"momentum": 1}, {"momentum": -0.1}, {"weight_decay": -1}, {"look_ahead": -1}, {"damping": 1}]
)
def test_sgd_impossible_values_are_refused(settings):
    with pytest.raises(ValidationError):
        Sgd(**settings)
