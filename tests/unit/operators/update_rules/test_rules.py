import numpy as np
import pytest
from pydantic import TypeAdapter
from rule_runs import Turns, alternate

from operators.update_rules import (
    AnyRule,
    Asgd,
    DanaDc,
    DanaZero,
    DcAsgd,
    Easgd,
    GapAware,
    Lwp,
    MultiAsgd,
    NagAsgd,
    Push,
    StalenessAware,
    YellowFin,
)
from operators.update_rules.yellowfin import single_step

RULES = [
    Asgd(),
    NagAsgd(momentum=0.9),
    MultiAsgd(momentum=0.9),
    Lwp(momentum=0.9),
    DcAsgd(momentum=0.9),
    DcAsgd(momentum=0.9, smoothing=0.95),
    DanaZero(momentum=0.9),
    DanaDc(momentum=0.9),
    YellowFin(),
    StalenessAware(),
    GapAware(),
    Easgd(),
]


def vector(*values):
    return np.array(values, np.float32)


def pushed(rule, *pushes, workers=2, start=(1.0,)):
    """Weights after pushes of (worker, gradient, lag, sent), at a rate of 0.1."""
    weights = vector(*start)
    memory = rule.init(weights, workers)
    for worker, gradient, lag, sent in pushes:
        rule.update(weights, memory, Push(worker, vector(gradient), 0.1, lag, vector(sent)))
    return weights.tolist()


@pytest.mark.parametrize(("lag", "moved"), [(0, 0.2), (1, 0.2), (4, 0.05)])
def test_staleness_aware_divides_the_rate_by_the_lag(lag, moved):
    assert pushed(StalenessAware(), (0, 2, lag, 1)) == pytest.approx([1 - moved])


def test_gap_aware_divides_by_one_and_the_gap_in_steps():
    # The mean square is 4 throughout, so a step is 0.1 * 2; the second gradient is 0.2 from where it was computed.
    rule = GapAware(smoothing=0.5)
    assert pushed(rule, (0, 2, 0, 1)) == pytest.approx([0.8])
    assert pushed(rule, (0, 2, 0, 1), (1, 2, 1, 1)) == pytest.approx([0.8 - 0.2 / 2])


def test_gap_aware_gradient_of_zeros_moves_nothing():
    assert pushed(GapAware(), (0, 0, 0, 1), (1, 0, 0, 1)) == [1.0]


def test_dc_asgd_adaptive_divides_lambda_by_the_root_of_the_mean_square():
    # Mean squares 2 and 3; then 2 + 2 / sqrt(3) * 4 * (0.8 - 1).
    rule = DcAsgd(momentum=0, strength=2, smoothing=0.5)
    corrected = 2 - 2 / 3**0.5 * 4 * 0.2
    assert pushed(rule, (0, 2, 0, 1), (1, 2, 1, 1)) == pytest.approx([0.8 - 0.1 * corrected])


def test_dc_asgd_weight_decay_is_not_corrected():
    # 2 + 2 * 4 * (1 - 0.5) + 0.5 * 1
    assert pushed(DcAsgd(momentum=0, strength=2, weight_decay=0.5), (0, 2, 0, 0.5)) == pytest.approx([1 - 0.65])


@pytest.mark.parametrize("sent", [1, -1])
def test_delay_compensation_of_a_gradient_whose_square_is_infinite_is_left_out(sent):
    # 1.5e19 is about the largest that a message may say; lambda g g is infinite, and times no way at all not a number.
    assert pushed(DcAsgd(momentum=0.5), (0, 1.5e19, 0, sent)) == pytest.approx([-1.5e18])
    assert pushed(DanaDc(momentum=0.5), (0, 1.5e19, 0, sent)) == pytest.approx([-1.5e18 * 1.5])


@pytest.mark.parametrize("rule", [Asgd(weight_decay=0.5), StalenessAware(weight_decay=0.5)])
def test_plain_rules_add_weight_decay_at_the_servers_weights(rule):
    # 2 + 0.5 * 1, then 2 + 0.5 * 0.75
    assert pushed(rule, (0, 2, 0, 1), (1, 2, 1, 1)) == pytest.approx([0.75 - 0.2375])


def test_gap_aware_takes_decay_for_part_of_the_gradient():
    # 2 + 2 * 0.5 throughout where nothing has moved, so a step is 0.1 * 3.
    assert pushed(GapAware(weight_decay=0.5, smoothing=0.5), (0, 2, 0, 2), start=(2.0,)) == pytest.approx([1.7])


def test_easgd_decays_the_workers_own_weights():
    # Both begin at 1: w <- 1 - 0.1 (2 + 0.5), and the centre stays.
    turns = Turns(Easgd(alpha=0.5, weight_decay=0.5), 2, np.ones(1))
    turns.push(0, [2], 0.1)
    assert (turns.replica(0)[0], turns.weights[0]) == (pytest.approx(0.75), 1.0)


@pytest.mark.parametrize("strength", [None, 0.5])
def test_dana_decays_theta_and_not_what_is_ahead_of_it(strength):
    """Algorithms 4 and 7 as printed, in float64, with decay of theta added after delay compensation."""
    rng, curvature = np.random.default_rng(4), np.linspace(0.1, 1, 17, dtype=np.float32)
    start = rng.normal(size=17).astype(np.float32)
    kept = {"momentum": 0.9, "weight_decay": 0.05}
    rule = DanaZero(**kept) if strength is None else DanaDc(**kept, strength=strength)
    turns = Turns(rule, 3, start)
    theta, velocities = start.astype(np.float64), np.zeros((3, 17))
    sent = [theta.copy() for _ in range(3)]
    for _ in range(500):
        worker, noise = int(rng.integers(3)), rng.normal(scale=0.1, size=17).astype(np.float32)
        turns.push(worker, curvature * turns.replica(worker) + noise, 0.02)
        gradient = curvature * sent[worker] + noise
        gradient = gradient + (strength or 0) * gradient * gradient * (theta - sent[worker])
        velocities[worker] = 0.9 * velocities[worker] + 0.02 * (gradient + 0.05 * theta)
        theta = theta - velocities[worker]
        sent[worker] = theta - 0.9 * velocities.sum(axis=0)
    np.testing.assert_allclose(turns.replica(worker), sent[worker], atol=2e-5)
    np.testing.assert_allclose(turns.master(), theta, atol=2e-5)


DECAYING = DanaZero(momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("rule", [DanaZero(momentum=0.9), DECAYING, DanaDc(momentum=0.9, strength=0)])
def test_dana_update_looks_at_no_velocity_but_the_workers_own_and_a_sum_only_where_theta_is_part_of_it(rule):
    turns = Turns(rule, 64, np.ones(3))
    for worker in range(64):
        turns.push(worker, [1, 2, 3], 0.001)
    np.testing.assert_allclose(turns.master(), 1 - 0.001 * 64 * np.array([1, 2, 3]), atol=1e-3)
    assert ("velocities" in turns.memory.vectors) == (rule != DanaZero(momentum=0.9))
    before = turns.weights.copy()
    for name, vector in turns.memory.vectors.items():
        if name.startswith("velocity.") and name != "velocity.7":
            vector.fill(np.nan)
    turns.push(7, [1, 2, 3], 0.001)
    assert np.isfinite(turns.weights).all()
    assert (turns.weights < before).all()


@pytest.mark.parametrize(("first", "then"), [(0.0, 0.5), (0.5, 0.0)])
def test_dana_zero_goes_on_with_another_weight_decay(first, then):
    """Algorithm 4 in float64: what is kept of a sum of velocities, or not, is that of the velocities."""
    rules = [DanaZero(momentum=0.5, weight_decay=decay) for decay in (first, then, first)]
    turns = Turns(rules[0], 2, np.ones(1))
    theta, velocities, sent = 1.0, [0.0, 0.0], [1.0, 1.0]
    for number in range(12):
        worker, decay = number % 2, rules[number // 4].weight_decay
        turns.rule = rules[number // 4]
        turns.push(worker, [0.3 * number], 0.1)
        velocities[worker] = 0.5 * velocities[worker] + 0.1 * (0.3 * number + decay * theta)
        theta -= velocities[worker]
        sent[worker] = theta - 0.5 * sum(velocities)
        assert turns.replica(worker)[0] == pytest.approx(sent[worker], abs=1e-6)
        assert turns.master()[0] == pytest.approx(theta, abs=1e-6)


def test_dana_zero_measures_one_gap_in_as_many_gradients_as_it_adds_up_velocities():
    assert [DanaZero(momentum=0.9).gap_every(workers) for workers in (1, 8, 9, 64)] == [8, 8, 9, 64]
    assert [rule.gap_every(64) for rule in (DECAYING, DanaDc(momentum=0.9), MultiAsgd(momentum=0.9))] == [8, 8, 8]


@pytest.mark.parametrize("rule", [NagAsgd(momentum=0.5, weight_decay=0.5), MultiAsgd(momentum=0.5, weight_decay=0.5)])
def test_momentum_rules_add_weight_decay_at_the_servers_weights(rule):
    # v = 0.1 * 2.5 = 0.25, w = 0.75; v = 0.125 + 0.1 * 2.375
    assert pushed(rule, (0, 2, 0, 1), (0, 2, 0, 1)) == pytest.approx([0.75 - 0.3625])


def test_lwp_of_one_worker_looks_no_step_ahead():
    assert alternate(Lwp(momentum=0.9), 6, workers=1) == alternate(NagAsgd(momentum=0.9), 6, workers=1)


def test_dana_dc_without_compensation_is_dana_zero_bit_for_bit():
    one, other = (Turns(rule, 3, np.ones(4)) for rule in (DanaDc(momentum=0.9, strength=0), DanaZero(momentum=0.9)))
    rng = np.random.default_rng(0)
    for _ in range(50):
        worker, gradient = int(rng.integers(3)), rng.normal(size=4)
        one.push(worker, gradient, 0.1)
        other.push(worker, gradient, 0.1)
    np.testing.assert_array_equal(one.weights, other.weights)
    np.testing.assert_allclose(one.master(), other.master(), atol=1e-6)


def test_easgd_workers_have_weights_of_their_own_from_the_start():
    turns = Turns(Easgd(alpha=0.5), 2, np.ones(1))
    turns.push(0, [1], 0.5)  # w_0 = 0.5, the centre stays
    turns.push(0, [0], 0.5)  # w_0 = 0.5 + 0.25, the centre 1 - 0.25
    turns.push(1, [0], 0.5)  # w_1 = 1 - 0.125, the centre 0.75 + 0.125
    assert (turns.replica(0)[0], turns.replica(1)[0], turns.weights[0]) == (0.75, 0.875, 0.875)


def test_single_step_without_bound_solves_the_cubic():
    # x = 4 (1 - x)^3 for C = 2, D = 1: x = 1/2
    assert single_step(1, 1, 2, 1) == pytest.approx((0.25, 0.25))


def test_single_step_of_nearly_no_noise_has_next_to_no_momentum():
    # p = 1e30 / 2, so x is 2e-30
    assert single_step(1, 1, 1e-30, 1) == pytest.approx((0, 1), abs=1e-12)


def test_single_step_of_nothing_but_noise_has_all_momentum():
    assert single_step(1, 1, 1e30, 1)[0] == pytest.approx(1, abs=1e-9)


def test_single_step_of_a_wide_range_of_curvature_is_bound():
    # (3 - 1) / (3 + 1) = 1/2; without noise there would be no momentum
    assert single_step(1, 9, 1e-9, 1) == pytest.approx((0.25, 0.25))


def yellowfin_by_the_book(gradients, changes, rule):
    """Momentum and rate after each gradient, in float64, with the total momentum as `changes` show it."""
    low, high, mean, second, norm, square, distance = (0.0,) * 7
    curvatures, found, rate, target, applied = [], [], rule.lr, rule.momentum, rule.momentum
    for count, (gradient, change) in enumerate(zip(gradients, changes, strict=True), start=1):
        keep, share = rule.smoothing, 1 - rule.smoothing**count
        curvatures = [*curvatures, gradient @ gradient][-rule.window :]
        low, high = keep * low + (1 - keep) * min(curvatures), keep * high + (1 - keep) * max(curvatures)
        mean, second = keep * mean + (1 - keep) * gradient, keep * second + (1 - keep) * gradient**2
        norm = keep * norm + (1 - keep) * np.linalg.norm(gradient)
        square = keep * square + (1 - keep) * (gradient @ gradient)
        distance = keep * distance + (1 - keep) * norm / square
        variance = max((second / share - (mean / share) ** 2).sum(), 1e-30)
        mu, eta = single_step(low / share, high / share, variance, distance / share)
        target, rate = keep * target + (1 - keep) * mu, keep * rate + (1 - keep) * eta
        step = rate * min(1.0, count / (10 * rule.window))
        total = applied if change is None else np.median((change[1] + step * gradient) / change[0])
        applied += rule.gain * (target - total)
        found.append((applied, step))
    return found


def test_yellowfin_two_workers_in_turns_tune_as_the_paper_says():
    rule, rng = YellowFin(lr=0.1, smoothing=0.9, window=3, gain=0.1), np.random.default_rng(3)
    gradients = rng.normal(size=(8, 5)).astype(np.float32)
    weights, changes, found = np.zeros(5, np.float32), [], []
    memory = rule.init(weights, 2)
    for number, gradient in enumerate(gradients):
        before = weights.copy()
        rule.update(weights, memory, Push(number % 2, gradient, 0.1, 1))
        changes.append(weights - before)
        found.append((memory.numbers["momentum"], -changes[-1]))
    known = [(changes[n - 2], changes[n - 1]) if n >= 2 else None for n in range(8)]
    velocity = np.zeros(5)
    for (momentum, step), (told, moved), gradient in zip(
        yellowfin_by_the_book(gradients.astype(np.float64), known, rule), found, gradients, strict=True
    ):
        assert told == pytest.approx(momentum, rel=1e-3, abs=1e-5)
        velocity = momentum * velocity + step * gradient
        np.testing.assert_allclose(moved, velocity, rtol=2e-3, atol=1e-6)


def test_yellowfin_gradient_of_zeros_changes_nothing():
    assert pushed(YellowFin(lr=0.1), (0, 0, 0, 1)) == [1.0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_rule_survives_json_and_compiles_on_a_weight(rule):
    adapter = TypeAdapter(AnyRule)
    assert adapter.validate_json(adapter.dump_json(rule)) == rule
    rule.compile()
