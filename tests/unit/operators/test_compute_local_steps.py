"""Gradients of several local steps."""

import numpy as np
import pytest
from computing import IMAGES, LABELS, MODEL, NONE, RATE, SLOW, make, shards, weights
from tiny_data import IDENTITY

from dataflow.node_context import NodeContext
from dataflow.operators_api import Sample, random_generator
from operators.clocks import ClocksState
from operators.dnn import BatchNorm, Dense, Dropout, Model, ModelSpec
from operators.optimizer import Sgd
from operators.schedule import Schedule
from operators.staleness import GAP_EVERY


def walked(rows, *, steps, optimizer, schedule=None, number=1, start=IDENTITY, velocity=None):
    """Weights, velocity and sum of directions of as many steps of SGD, one after the other, and the summed loss."""
    here, rate = start.copy(), np.float32((schedule or Schedule(lr=0.3)).at(number, 3))
    velocity = optimizer.velocity(len(here)) if velocity is None else velocity.copy()
    total, loss = np.zeros_like(here), 0.0
    for part in np.array_split(rows, steps):
        out = np.empty_like(here)
        more, _ = MODEL.gradient(
            here, IMAGES[part], LABELS[part], out, MODEL.workspace(4), 1 / len(part), statistics=NONE, seed=0
        )
        optimizer.direct(out, here, velocity, float(rate))
        total, here, loss = total + out, here - (1 if optimizer.scaled else rate) * out, loss + more
    return here, velocity, total, loss


@pytest.mark.parametrize(
    "optimizer",
    [
        Sgd(),
        Sgd(momentum=0.5, weight_decay=0.1),
        Sgd(momentum=0.5, look_ahead=1),
        Sgd(momentum=0.5, look_ahead=1, scaled=True),
    ],
)
@pytest.mark.parametrize("emits", ["gradient", "update"])
@pytest.mark.parametrize("local", [True, False])
def test_compute_local_steps_are_plain_sgd_for_one_gradient(optimizer, emits, local):
    compute = make(mini_batch=2, optimizer=optimizer, emits=emits, local=local, schedule=SLOW)
    start, velocity = IDENTITY, None
    for number in (1, 2, 3):
        compute.send(*shards(1, step=number, before=(number - 1) / 2))
        after, velocity, total, loss = walked(
            range(4), steps=2, optimizer=optimizer, schedule=SLOW, number=number, start=start, velocity=velocity
        )
        rate = np.float32(1.0 if optimizer.scaled else SLOW.at(number, 3))
        sent = total if emits == "gradient" else rate * total
        np.testing.assert_allclose(compute.emitted("gradients")[-1].values, sent, rtol=2e-6, atol=1e-7)
        np.testing.assert_allclose(compute.states["velocity"].values, velocity, rtol=1e-6)
        np.testing.assert_allclose(weights(compute), after if local else IDENTITY, rtol=1e-6, atol=1e-7)
        assert compute.emitted("progress")[-1].loss == pytest.approx(loss / 4, rel=1e-6)
        start = after if local else start
    assert [message.number for message in compute.emitted("gradients")] == [1, 2, 3]
    assert compute.states["clocks"].images == 3 * 12


def test_compute_local_steps_of_two_shards_count_by_their_images():
    optimizer = Sgd(momentum=0.5)
    compute = make(mini_batch=2, optimizer=optimizer, emits="gradient")
    first, second = shards(2, size=3)
    assert (len(first.images), len(second.images)) == (1, 2)
    compute.send(first)
    compute.send(second)
    _, one, its, _ = walked(range(1), steps=1, optimizer=optimizer)
    _, two, others, _ = walked(range(1, 3), steps=2, optimizer=optimizer)
    np.testing.assert_allclose(compute.emitted("gradients")[0].values, (its + 2 * others) / 3, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(compute.states["velocity"].values, (one + 2 * two) / 3, rtol=1e-5, atol=1e-6)


def test_compute_local_steps_of_a_shard_without_images_are_none():
    compute = make(mini_batch=1, optimizer=Sgd(momentum=0.5), emits="gradient")
    for shard in shards(3, size=2):
        compute.send(shard)
    halves = [walked([image], steps=1, optimizer=Sgd(momentum=0.5)) for image in (0, 1)]
    for got, which in ((compute.emitted("gradients")[0].values, 2), (compute.states["velocity"].values, 1)):
        np.testing.assert_allclose(got, (halves[0][which] + halves[1][which]) / 2, rtol=1e-5, atol=1e-6)


def test_compute_what_is_no_larger_than_a_mini_batch_is_one_step_bit_for_bit():
    optimizer = Sgd(momentum=0.5)
    one, other = make(mini_batch=4, optimizer=optimizer), make(optimizer=optimizer)
    for compute in (one, other):
        compute.send(*shards(1))
    assert np.array_equal(weights(one), weights(other))
    assert one.states["velocity"].values.any()
    assert np.array_equal(one.states["velocity"].values, other.states["velocity"].values)


def test_compute_a_walk_that_is_poisoned_changes_nothing():
    compute = make(mini_batch=2, optimizer=Sgd(momentum=0.5))
    (batch,) = shards(1)
    images = batch.images.copy()
    images[3, 0, 0, 0] = np.nan
    compute.send(batch.with_images(images))
    assert compute.emitted("gradients")[0].values.tolist() == [0] * 6
    assert weights(compute).tolist() == IDENTITY.tolist()
    assert compute.states["velocity"].values.tolist() == [0] * 6
    assert compute.states["clocks"].poisoned == 1


def test_compute_snapshots_of_a_walk_are_never_written():
    operator, frozen, velocity = (
        make(mini_batch=1, optimizer=Sgd(momentum=0.5)).operator,
        IDENTITY.copy(),
        np.ones(6, np.float32),
    )
    frozen.flags.writeable = velocity.flags.writeable = False
    part = operator.process(shards(1)[0], frozen, NONE, velocity, ClocksState(2, {}), NodeContext())
    assert not np.shares_memory(part.gradient, frozen)
    assert not np.shares_memory(part.velocity, velocity)


def test_compute_local_steps_have_seeds_of_their_own_and_advance_statistics_one_after_the_other():
    spec = ModelSpec(input=(1, 1, 2), layers=(Dense(units=5), BatchNorm(), Dropout(rate=0.5), Dense(units=2)))
    model = Model(spec)
    start, running = model.initial(np.random.default_rng(1)), model.initial_statistics()
    compute = make(model=spec, weights=start, mini_batch=2, emits="gradient")
    compute.states["statistics"].values = running.copy()
    compute.send(*shards(1))
    here, total, workspace = start.copy(), np.zeros_like(start), model.workspace(2)
    for begin in (0, 2):
        seed = int(random_generator(0, "compute", 1, 0, 0, *((begin,) if begin else ())).integers(1 << 63))
        out, part = np.empty_like(here), slice(begin, begin + 2)
        model.gradient(here, IMAGES[part], LABELS[part], out, workspace, 0.5, statistics=running, seed=seed)
        total, here = total + out, here - RATE * out
    np.testing.assert_allclose(compute.emitted("gradients")[0].values, total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(compute.states["statistics"].values, running, rtol=1e-6)
    np.testing.assert_allclose(weights(compute), here, rtol=1e-5, atol=1e-6)


def test_compute_local_steps_tell_how_far_weights_have_moved_and_no_normalised_gap():
    batches = [shards(1, step=step) for step in range(2 * GAP_EVERY)]
    told = []
    for mini_batch in (None, 2):
        compute = make(origins=(0, 2), mini_batch=mini_batch, schedule=Schedule(lr=0.001))
        effects = [effect for batch in batches for effect in compute.send(*batch)]
        told.append({effect.name for effect in effects if isinstance(effect, Sample)})
    assert told[0] - told[1] == {"normalised_gap"}
    assert "gap" in told[1]
