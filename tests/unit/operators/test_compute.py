import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from computing import IMAGES, LABELS, MODEL, NONE, RATE, SLOW, gradient, make, shards, weights
from tiny_data import IDENTITY

from dataflow.errors import OperatorError
from dataflow.node_context import NodeContext
from dataflow.operators_api import Checkpoint, Sample
from operators.checkpointing import Checkpoints
from operators.clocks import ClocksState
from operators.dnn import Dense, Model, ModelSpec
from operators.messages import Batch, Progress
from operators.optimizer import Sgd
from operators.quarantine import poison
from operators.staleness import GAP_EVERY


def test_compute_one_shard_emits_the_models_gradient():
    compute = make(emits="gradient")
    compute.send(*shards(1))
    (message,) = compute.emitted("gradients")
    assert message.number == 1
    assert message.values.dtype == np.float32
    assert np.array_equal(message.values, gradient(IMAGES, LABELS, 0.25)[0])


def test_compute_that_shares_goes_by_the_images_of_all_nodes_and_drops_what_is_beyond():
    compute = make(emits="update", passes=SLOW.passes, schedule=SLOW.model_copy(update={"warmup": 1.5}))
    clocks = compute.states["clocks"]
    for come in (0, 2, 18, 24, 36):
        clocks.come, clocks.enough = come, come == 36
        compute.send(*shards(1, step=clocks.made))
    told = compute.emitted("progress")
    assert [progress.step for progress in told] == [1, 2, 3, 4]
    # Three nodes are to make a gradient of four images each, of 24 in an epoch.
    assert [progress.images for progress in told] == [12, 14, 30, 36]
    assert [progress.epoch for progress in told] == [12 / 24, 14 / 24, 30 / 24, 36 / 24]
    made = compute.emitted("gradients")
    assert [each.images for each in made] == [4] * 4
    # A third of 0.3 at first, all of it after 1.5 epochs: 0.1 + 0.2 x come / 36.
    assert [each.rate for each in made] == pytest.approx([0.1, 0.1 + 0.4 / 36, 0.2, 0.1 + 4.8 / 36])
    whole = gradient(IMAGES, LABELS, 0.25)[0]
    np.testing.assert_allclose(made[0].values, np.float32(0.1) * whole, rtol=1e-6)
    assert clocks.made == len(compute.emitted("gradients")) == 4


def test_compute_that_shares_never_tells_of_less_than_before_also_where_a_mini_batch_is_small():
    compute = make(passes=SLOW.passes)
    for come, size in ((0, 4), (4, 1), (5, 4)):
        compute.states["clocks"].come = come
        compute.send(*shards(1, step=compute.states["clocks"].made, size=size))
    told = [(progress.images, progress.epoch) for progress in compute.emitted("progress")]
    assert told == [(12, 12 / 24), (12, 12 / 24), (17, 17 / 24)]


def test_compute_two_shards_add_up_in_shard_order():
    compute = make(emits="gradient")
    first, second = shards(2)
    assert compute.send(second) == []
    compute.send(first)
    parts = [gradient(IMAGES[:2], LABELS[:2], 0.25)[0], gradient(IMAGES[2:], LABELS[2:], 0.25)[0]]
    (message,) = compute.emitted("gradients")
    assert np.array_equal(message.values, parts[0] + parts[1])
    assert message.images == 4
    assert message.values == pytest.approx(gradient(IMAGES, LABELS, 0.25)[0], rel=1e-5, abs=1e-6)


def test_compute_more_shards_than_images_counts_empty_ones_as_nothing():
    compute = make(emits="gradient")
    for shard in shards(3, size=2):
        compute.send(shard)
    (message,) = compute.emitted("gradients")
    assert message.values == pytest.approx(gradient(IMAGES[:2], LABELS[:2], 0.5)[0], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("emits", ["gradient", "update"])
def test_compute_local_and_emits_decide_what_changes_and_what_leaves(local, emits):
    compute = make(local=local, emits=emits)
    compute.send(*shards(1))
    want, _ = gradient(IMAGES, LABELS, 0.25)
    (message,) = compute.emitted("gradients")
    assert np.array_equal(message.values, want * RATE if emits == "update" else want)
    assert np.array_equal(weights(compute), IDENTITY - want * RATE if local else IDENTITY)
    assert weights(compute).dtype == message.values.dtype == np.float32


@pytest.mark.parametrize("emits", ["gradient", "update"])
def test_compute_momentum_direction_is_applied_and_leaves(emits):
    compute = make(emits=emits, optimizer=Sgd(momentum=0.5, weight_decay=0.25))
    start, velocity = IDENTITY.copy(), np.zeros_like(IDENTITY)
    for step in range(3):
        compute.send(*shards(1, step=step))
        out = np.empty_like(start)
        MODEL.gradient(start, IMAGES, LABELS, out, MODEL.workspace(4), 0.25, statistics=NONE, seed=0)
        velocity = np.float32(0.5) * velocity + (out + np.float32(0.25) * start)
        start -= velocity * RATE
        message = compute.emitted("gradients")[-1]
        assert np.array_equal(message.values, velocity * RATE if emits == "update" else velocity)
    assert np.array_equal(weights(compute), start)
    assert np.array_equal(compute.states["velocity"].values, velocity)


def test_compute_momentum_of_two_shards_sees_their_sum_once():
    compute, sgd = make(optimizer=Sgd(momentum=0.5)), {}
    for step in range(2):
        compute.send(*shards(2, step=step)[:1])
        compute.send(*shards(2, step=step)[1:])
        sgd[step] = compute.states["velocity"].values.copy()
    assert np.array_equal(compute.emitted("gradients")[0].values, sgd[0] * RATE)
    assert np.array_equal(compute.emitted("gradients")[1].values, sgd[1] * RATE)
    assert sgd[0] == pytest.approx(gradient(IMAGES, LABELS, 0.25)[0], rel=1e-5, abs=1e-6)


def test_compute_restored_velocity_and_replica_go_on_as_if_never_interrupted():
    sgd = Sgd(momentum=0.9, look_ahead=1)
    whole, first, second = (make(optimizer=sgd) for _ in range(3))
    whole.send(*shards(1))
    first.send(*shards(1))
    for name in ("replica", "velocity", "clocks"):
        second.states[name].restore(first.states[name].tensors())
    whole.send(*shards(1, step=1))
    second.send(*shards(1, step=1))
    assert np.array_equal(weights(second), weights(whole))
    assert not np.array_equal(weights(second), weights(first))


def test_compute_emitted_gradient_is_not_changed_by_the_next_step():
    compute = make()
    compute.send(*shards(1))
    (message,) = compute.emitted("gradients")
    before = message.values.copy()
    compute.send(*shards(1, step=1))
    assert np.array_equal(message.values, before)


def test_compute_progress_counts_the_whole_roles_images_and_the_mean_loss():
    compute = make()
    compute.send(*shards(1))
    compute.send(*shards(1, step=1, size=2))
    loss = gradient(IMAGES, LABELS, 0.25)[1] / 4
    first, second = compute.emitted("progress")
    assert first == Progress(step=1, images=12, epoch=0.5, loss=loss)
    assert (second.step, second.images, second.final) == (2, 18, False)


def test_compute_rate_is_that_behind_the_epochs_that_were_made():
    want, _ = gradient(IMAGES, LABELS, 0.25)
    for before, rate in ((0.0, 0.1), (0.5, 0.2), (3.0, 0.3)):
        compute = make(schedule=SLOW)
        compute.send(*shards(1, before=before))
        (made,) = compute.emitted("gradients")
        assert np.array_equal(made.values, want * np.float32(made.rate))
        assert made.rate == pytest.approx(rate)


def test_compute_weights_that_are_not_finite_raise_at_once_with_node_and_step():
    compute = make(weights=np.full_like(IDENTITY, np.nan))
    compute.states["clocks"].made = 6
    match = r"the loss is nan at step 7 and weights are no longer finite: training diverges.*at node left.*lower lr"
    with pytest.raises(OperatorError, match=match):
        compute.send(*shards(1))


def poisoned_shards(count, value, *, step=0):
    whole = shards(count, step=step)
    images = whole[-1].images.copy()
    images[-1, 0, 0, 1] = value
    return [*whole[:-1], whole[-1].with_images(images)]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("emits", ["gradient", "update"])
def test_compute_poisoned_gradient_leaves_as_zeros_of_its_number_and_changes_nothing(value, count, emits):
    compute = make(emits=emits, optimizer=Sgd(momentum=0.5, weight_decay=0.25))
    compute.send(*shards(1))
    before, velocity = weights(compute).copy(), compute.states["velocity"].values.copy()
    for shard in poisoned_shards(count, value, step=1):
        effects = compute.send(shard)
    message, told = compute.emitted("gradients")[-1], compute.emitted("progress")[-1]
    assert (message.number, message.values.tolist()) == (2, [0] * 6)
    assert (told.step, told.images) == (2, 24)
    assert math.isnan(told.loss)
    assert weights(compute).tolist() == before.tolist()
    assert compute.states["velocity"].values.tolist() == velocity.tolist()
    assert Sample("poisoned_gradients", 1.0) in effects
    compute.send(*shards(1, step=2))
    assert compute.emitted("gradients")[-1].values.any()
    assert compute.states["clocks"].poisoned == 1


def test_compute_loss_that_is_infinite_is_poison_though_the_gradient_is_finite():
    compute = make()
    part = compute.part(shards(1)[0])
    effects = compute.merge([part._replace(loss=math.inf)])
    assert Sample("poisoned_gradients", 1.0) in effects
    assert weights(compute).tolist() == IDENTITY.tolist()


def test_compute_one_poisoned_gradient_too_many_fails_naming_node_step_image_and_count():
    compute = make(max_poison=2)
    for shard in (*poisoned_shards(2, np.nan), *poisoned_shards(2, np.nan, step=1)):
        compute.send(shard)
    first, second = poisoned_shards(2, np.nan, step=2)
    compute.send(first)
    match = (
        r"image 1 in shard 1 of mini-batch 2 has pixels that are not finite at step 3 "
        r"\(3 poisoned gradients, max_poison is 2\) at node left, operator compute; look at the data"
    )
    with pytest.raises(OperatorError, match=match):
        compute.send(second)


def test_compute_gradient_too_large_for_sums_of_large_weights_speaks_of_divergence():
    compute = make(weights=IDENTITY * np.float32(1e6), max_poison=0)
    part = compute.part(shards(1)[0])
    part.gradient[3] = 2e19  # its square is more than float32 holds
    bad = part._replace(poison=poison(shards(1)[0], 1.0, part.gradient))
    with pytest.raises(OperatorError, match=r"a weight has grown to 1e\+06: training diverges.*lower lr or momentum"):
        compute.merge([bad])


def test_compute_poison_of_its_own_making_is_told_from_divergence_by_the_weights():
    compute = make(max_poison=0)
    part = compute.part(shards(1)[0])
    with pytest.raises(OperatorError, match=r"nan at step 1 though no weight is larger than 1 .*own layers"):
        compute.merge([part._replace(loss=math.nan)])


@pytest.mark.parametrize(("made", "ready"), [(0, True), (5, True), (6, False)])
def test_ready_bound_is_applied_plus_span_plus_slack(made, ready):
    compute = make(origins=(0, 2), slack=2)
    clocks = compute.states["clocks"]
    clocks.advance(0, slice(0, 2), 0, 4, span=1)
    clocks.advance(2, slice(0, 2), 0, 1, span=2)  # 1 + 2 + slack 2 = 5
    clocks.made = made
    assert compute.ready() is ready


def test_ready_slack_zero_waits_for_every_gradient_made_so_far():
    compute = make(origins=(0,), slack=0)
    clocks = compute.states["clocks"]
    assert compute.ready()
    clocks.made = 1
    assert not compute.ready()
    clocks.advance(0, slice(0, 2), 0, 1)
    assert compute.ready()


@pytest.mark.parametrize("origins", [(), (0, 2)])
def test_ready_without_bound_or_without_others_never_waits(origins):
    compute = make(origins=origins, slack=0 if not origins else None)
    compute.states["clocks"].made = 100
    assert compute.ready()


def test_staleness_is_what_the_weights_lacked_when_the_gradient_was_computed():
    compute = make(origins=(0, 2))
    clocks = compute.states["clocks"]
    clocks.made = 3
    clocks.advance(0, slice(0, 2), 0, 2)
    clocks.advance(2, slice(0, 2), 0, 1)
    part = compute.part(shards(1)[0])
    clocks.advance(2, slice(0, 2), 1, 3)  # comes while the gradient is computed
    effects = compute.merge([part])
    assert Sample("staleness", 2.0) in effects


def test_compute_tells_every_eighth_gradient_how_far_others_moved_the_replica_meanwhile():
    compute = make(local=True)
    told = []
    for step in range(2 * GAP_EVERY):
        part = compute.part(*shards(1, step=step))
        compute.states["replica"].values[:] += np.float32(0.25)
        norm = float(np.linalg.norm(part.gradient))
        samples = [effect for effect in compute.merge([part]) if isinstance(effect, Sample)]
        assert [each.name for each in samples[:2]] == ["staleness", "lag"]
        told.append(samples[2:])
        if step % GAP_EVERY == GAP_EVERY - 1:
            gap, normalised = told[-1]
            assert (gap.name, gap.value) == ("gap", pytest.approx(0.25, rel=1e-5))
            assert (normalised.name, normalised.value) == ("normalised_gap", pytest.approx(0.25 / norm, rel=1e-5))
    assert [len(each) for each in told] == 2 * [*[0] * (GAP_EVERY - 1), 2]


def test_compute_whose_gradients_are_applied_elsewhere_measures_no_staleness():
    compute = make(local=False, emits="gradient", measures=False)
    told = [effect for step in range(GAP_EVERY) for effect in compute.send(*shards(1, step=step))]
    assert [effect.name for effect in told if isinstance(effect, Sample)] == []


@pytest.mark.parametrize("local", [True, False])
def test_compute_lag_counts_gradients_of_others_applied_while_one_was_computed(local):
    compute = make(origins=(1, 2), local=local)
    clocks = compute.states["clocks"]
    clocks.advance(1, slice(0, 2), 0, 5)
    part = compute.part(shards(1)[0])
    clocks.advance(1, slice(0, 2), 5, 7)
    clocks.advance(2, slice(0, 2), 0, 1)
    clocks.advance(2, slice(0, 1), 1, 4)  # to some cells only
    assert Sample("lag", 3.0) in compute.merge([part])


@pytest.mark.parametrize("local", [True, False])
def test_compute_scaled_momentum_keeps_earlier_updates_when_the_rate_changes(local):
    # Rates 0.1, 0.2 and 0.3 in turn: v <- v / 2 + rate g, and the update is rate g + v / 2.
    optimizer = Sgd(momentum=0.5, look_ahead=1, scaled=True)
    compute = make(local=local, schedule=SLOW, optimizer=optimizer)
    start, velocity = IDENTITY.copy(), np.zeros_like(IDENTITY)
    for number in (1, 2, 3):
        compute.send(*shards(1, step=number, before=(number - 1) / 2))
        out = np.empty_like(start)
        MODEL.gradient(start, IMAGES, LABELS, out, MODEL.workspace(4), 0.25, statistics=NONE, seed=0)
        step = np.float32(SLOW.at(number, 3)) * out
        velocity = np.float32(0.5) * velocity + step
        update = step + np.float32(0.5) * velocity
        assert np.array_equal(compute.emitted("gradients")[-1].values, update)
        start -= update if local else 0
    assert [SLOW.at(number, 3) for number in (1, 3)] == pytest.approx([0.1, 0.3])
    assert np.array_equal(weights(compute), start)


def test_compute_empty_mini_batch_is_no_gradient_whatever_the_optimizer():
    optimizer = Sgd(momentum=0.5, weight_decay=0.25)
    compute = make(emits="gradient", optimizer=optimizer)
    compute.send(*shards(1))
    velocity = compute.states["velocity"].values.copy()
    assert velocity.any()
    before = weights(compute).copy()
    compute.send(Batch(1, 0, 1, IMAGES[:0], LABELS[:0], 0, 0.5, 0.75, 8))
    empty, told = compute.emitted("gradients")[-1], compute.emitted("progress")[-1]
    assert (empty.number, empty.values.tolist()) == (2, [0] * 6)
    assert weights(compute).tolist() == before.tolist()
    assert compute.states["velocity"].values.tolist() == velocity.tolist()
    assert (told.step, told.images, told.epoch) == (2, 12 + 8, 0.75)
    assert math.isnan(told.loss)


def test_compute_part_under_threads_gives_each_its_own_workspace():
    operator = make().operator
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(64):
        size = int(rng.integers(0, 9))
        images = rng.random((size, 1, 1, 2), np.float32)
        batches.append(Batch(0, 0, 1, images, rng.integers(0, 2, size), max(1, size), 0.0, 0.0, 9))
    clocks = ClocksState(2, {})
    want = [operator.process(batch, IDENTITY, NONE, NONE, clocks, NodeContext()) for batch in batches]
    start = threading.Barrier(2)

    def work(half):
        start.wait()
        return [operator.process(batch, IDENTITY, NONE, NONE, clocks, NodeContext()) for batch in half]

    with ThreadPoolExecutor(2) as pool:
        got = [part for half in pool.map(work, (batches[:32], batches[32:])) for part in half]
    for one, other in zip(want, got, strict=True):
        assert np.array_equal(one.gradient, other.gradient)
        assert one.loss == other.loss
    assert len(operator._workspaces) <= 2


def test_compute_snapshot_is_never_written():
    compute = make()
    frozen = IDENTITY.copy()
    frozen.flags.writeable = False
    part = compute.operator.process(shards(1)[0], frozen, NONE, NONE, ClocksState(2, {}), NodeContext())
    assert not np.shares_memory(part.gradient, frozen)


def test_compute_deeper_model_equals_plain_sgd_bit_for_bit():
    spec = ModelSpec(input=(1, 1, 2), layers=(Dense(units=5), Dense(units=2)))
    model = Model(spec)
    start = model.initial(np.random.default_rng(1))
    compute = make(weights=start, model=spec)
    out, workspace = np.empty_like(start), model.workspace(4)
    for step in range(5):
        compute.send(*shards(1, step=step))
        model.gradient(start, IMAGES, LABELS, out, workspace, 0.25, statistics=NONE, seed=0)
        start -= RATE * out
    assert np.array_equal(weights(compute), start)
    assert [message.number for message in compute.emitted("gradients")] == [1, 2, 3, 4, 5]


def test_compute_averages_the_weights_over_its_share_of_so_many_gradients():
    """Six gradients of three nodes are two of each: the mean of the first two, then half of what is new."""
    compute, seen = make(averages_over=6, local=True), []
    for step in range(3):
        compute.send(shards(1, step=step)[0])
        seen.append(weights(compute).copy())
    expected = ((seen[0] + seen[1]) / 2 + seen[2]) / 2
    assert np.allclose(compute.states["average"].snapshot(), expected, atol=1e-6)


def test_compute_without_a_window_averages_nothing():
    compute = make()
    compute.send(shards(1)[0])
    assert compute.states["average"].snapshot() is None


def test_compute_checkpoints_are_due_by_its_own_gradients_or_where_nobody_waits_by_what_all_have_made_on_average():
    """Every second gradient of three workers of four images each; two others have made six and none."""
    every = Checkpoints(images=24, batch=4)
    for at_pace, due in ((False, [(2, None), (4, None)]), (True, [(2, 1), (4, 4)])):
        compute, found = make(origins=(0, 2), checkpoints=every.model_copy(update={"at_pace": at_pace})), []
        clocks = compute.states["clocks"]
        for number in range(1, 6):
            if number in (1, 4):  # 7 of all, then 14
                clocks.advance(0, slice(0, 2), *((0, 6) if number == 1 else (6, 10)))
            effects = compute.send(*shards(1, step=number))
            found += [(each.number, each.steps) for each in effects if isinstance(each, Checkpoint)]
        assert found == due
