"""Methods, section 5, on J = theta^2 / 2 with two workers in strict turns."""

import numpy as np
import pytest
from rule_runs import Turns, alternate

from operators.optimizer import Sgd
from operators.update_rules import Asgd, DanaDc, DanaZero, DcAsgd, Easgd, Lwp, MultiAsgd, NagAsgd

ANSWERS = [
    (Asgd(), 0.71, 0.63, 0.3905),
    (NagAsgd(momentum=0.9), 0.449, 0.1431, -0.91527),
    (MultiAsgd(momentum=0.9), 0.62, 0.45, -0.3772),
    (DcAsgd(momentum=0.9, strength=2), 0.65296, 0.521424, -0.213046),
    (Lwp(momentum=0.9), 0.459, 0.1811, -0.599981),
    (DanaZero(momentum=0.9), 0.629, 0.477, -0.162969),
    (DanaDc(momentum=0.9, strength=2), 0.647688, 0.510781, -0.136047),
]


@pytest.mark.parametrize(("rule", "third", "fourth", "eighth"), ANSWERS, ids=lambda value: getattr(value, "kind", None))
def test_rule_two_workers_in_turns_give_the_known_answers(rule, third, fourth, eighth):
    found = alternate(rule, 8)
    assert [found[2], found[3], found[7]] == pytest.approx([third, fourth, eighth], abs=1e-6)


def slim(updates):
    """DANA-Slim (algorithm 6): Theta after each update, and theta of the change of variable (equation 15)."""
    sgd, turns = Sgd(momentum=0.9, look_ahead=1, scaled=True), Turns(Asgd(), 2, np.ones(1))
    velocities = [sgd.velocity(1) for _ in range(2)]
    sent, theta = [], []
    for number in range(updates):
        worker = number % 2
        update = turns.replica(worker).copy()
        sgd.direct(update, turns.replica(worker), velocities[worker], 0.1)
        turns.push(worker, update, 1.0)
        sent.append(float(turns.weights[0]))
        theta.append(float((turns.weights + np.float32(0.9) * sum(velocities))[0]))
    return sent, theta


def test_dana_slim_two_workers_in_turns_give_the_known_answers():
    sent, theta = slim(8)
    assert [sent[2], sent[3], sent[7]] == pytest.approx([0.3851, 0.1863, -0.425884], abs=1e-6)
    assert theta[7] == pytest.approx(-0.162969, abs=1e-6)


def test_easgd_one_worker_moves_both_from_their_old_values():
    turns, found = Turns(Easgd(alpha=0.15), 1, np.ones(1)), []
    for _ in range(4):
        turns.push(0, turns.replica(0), 0.1)
        found.append((float(turns.replica(0)[0]), float(turns.weights[0])))
    assert found == pytest.approx(
        [
            pytest.approx((0.9, 1.0), abs=1e-6),
            pytest.approx((0.825, 0.985), abs=1e-6),
            pytest.approx((0.7665, 0.961), abs=1e-6),
            pytest.approx((0.719025, 0.931825), abs=1e-6),
        ]
    )


def changing_rate(number):
    """A rate that rises, jumps and falls."""
    return 0.05 * (1 + number / 500) * (0.1 if number >= 700 else 1.0)


def test_dana_zero_one_worker_equals_nesterov_bit_for_bit_under_a_changing_rate():
    rng, curvature = np.random.default_rng(1), np.linspace(0.1, 2, 33, dtype=np.float32)
    start = rng.normal(size=33).astype(np.float32)
    turns = Turns(DanaZero(momentum=0.9), 1, start)
    ahead, velocity, gamma = start.copy(), np.zeros(33, np.float32), np.float32(0.9)  # Bengio et al. 2013, equation 7
    for number in range(1000):
        turns.push(0, curvature * turns.replica(0), changing_rate(number))
        step = np.float32(changing_rate(number)) * (curvature * ahead)
        velocity = gamma * velocity + step
        ahead = ahead - (step + gamma * velocity)
    np.testing.assert_array_equal(turns.replica(0), ahead)
    assert 0 < np.abs(ahead).max() < 1e-3


def test_dana_zero_equals_the_papers_algorithm_4_and_dana_slim_for_a_thousand_random_steps_under_a_changing_rate():
    """Three workers in random order; DANA-Zero as kept, as printed (in float64), and DANA-Slim."""
    rng, curvature = np.random.default_rng(2), np.linspace(0.1, 1, 17, dtype=np.float32)
    start = rng.normal(size=17).astype(np.float32)
    sgd = Sgd(momentum=0.9, look_ahead=1, scaled=True)
    zero, slim = Turns(DanaZero(momentum=0.9), 3, start), Turns(Asgd(), 3, start)
    own = [sgd.velocity(17) for _ in range(3)]
    theta, printed = start.astype(np.float64), np.zeros((3, 17))
    sent = [theta.copy() for _ in range(3)]
    for number in range(1000):
        worker, rate = int(rng.integers(3)), changing_rate(number) / 3
        noise = rng.normal(scale=0.1, size=17).astype(np.float32)
        zero.push(worker, curvature * zero.replica(worker) + noise, rate)
        update = curvature * slim.replica(worker) + noise
        sgd.direct(update, slim.replica(worker), own[worker], rate)
        slim.push(worker, update, 1.0)
        printed[worker] = 0.9 * printed[worker] + rate * (curvature * sent[worker] + noise)
        theta = theta - printed[worker]
        sent[worker] = theta - 0.9 * printed.sum(axis=0)
        np.testing.assert_allclose(zero.replica(worker), slim.replica(worker), atol=2e-6)
        np.testing.assert_allclose(zero.replica(worker), sent[worker], atol=2e-5)
    np.testing.assert_allclose(zero.master(), theta, atol=2e-5)
    np.testing.assert_allclose(slim.weights + np.float32(0.9) * sum(own), theta, atol=2e-5)
    assert np.abs(sent[worker] - theta).max() > 1e-3
