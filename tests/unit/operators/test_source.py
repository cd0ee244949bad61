import math

import numpy as np
import pytest
from tiny_data import data, numbers

from dataflow.errors import ConfigError, DataError
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import EndOfData
from dataflow.testing.operator_harness import Harness
from operators.course import Course, CourseState
from operators.data import DataRef, open_data, pixels
from operators.passes import steps_per_epoch
from operators.roll import RollState
from operators.source import Source, training_rows
from operators.warm_up import WarmUp


def source(count, *, rank=0, size=1, seed=0, **fields):
    node = NodeContext(index=rank, members={"worker": tuple(range(size))}, seed=seed)
    roll = RollState(rank, range(size), 0)
    return Harness(Source(data=data(count), **fields), node=node, states={"roll": roll, "course": Course()})


def steps(harness, *, shards=1, most=100):
    """The batches of every step to the end of data: a list of shards per step."""
    found = []
    for step in range(most):
        effects = [effect for shard in range(shards) for effect in harness.send(Tick(step, shard, shards))]
        if any(isinstance(effect, EndOfData) for effect in effects):
            assert effects == [EndOfData()] * shards
            return found
        found.append([effect.message for effect in effects])
    return found


def seen(harness, **options):
    return [number for shards in steps(harness, **options) for batch in shards for number in numbers(batch)]


def test_source_one_epoch_gives_every_sample_of_every_third_once():
    for rank in range(3):
        assert sorted(seen(source(12, rank=rank, size=3, batch=3, epochs=1))) == list(range(rank, 12, 3))


def test_source_uneven_shares_make_the_same_number_of_batches_without_repeats():
    # 11 samples of 3 nodes: shares of 4, 4 and 3, of which 3 are used in an epoch.
    for rank in range(3):
        harness = source(11, rank=rank, size=3, batch=2, epochs=1)
        batches = steps(harness)
        assert [batch.size for (batch,) in batches] == [2, 1]
        used = [number for (batch,) in batches for number in numbers(batch)]
        assert len(set(used)) == 3
        assert set(used) <= set(range(rank, 11, 3))


def test_source_uneven_shares_leave_out_another_sample_in_another_epoch():
    left_out = set()
    for (batch,) in steps(source(11, rank=0, size=3, batch=3, epochs=20)):
        left_out |= {0, 3, 6, 9} - set(numbers(batch))
    assert len(left_out) > 1


STAGES = (WarmUp(nodes=1, epochs=1 / 3, batch=1), WarmUp(nodes=2, epochs=1, batch=2))


@pytest.mark.parametrize(
    ("rank", "warm_up", "sizes", "of_all"),
    [
        # 24 images of 3 nodes: mini-batches of 3, 3 and 2 in an epoch. Half an epoch is two of them: 1.5, rounded up.
        (0, (WarmUp(nodes=2, epochs=0.5, batch=2),), [2, 2, 2, 3, 3, 2], [4, 4, 6, 9, 9, 6]),
        (1, (WarmUp(nodes=2, epochs=0.5),), [3, 3, 2, 3, 3, 2], [6, 6, 6, 9, 9, 6]),
        (2, (WarmUp(nodes=2, epochs=0.5, batch=2),), [0, 0, 2, 3, 3, 2], [4, 4, 6, 9, 9, 6]),
        (2, (WarmUp(epochs=1, batch=2),), [2, 2, 2, 3, 3, 2], [6, 6, 6, 9, 9, 6]),
        (2, (), [3, 3, 2, 3, 3, 2], [9, 9, 6, 9, 9, 6]),
        # Two stages, the second until 4/3 of an epoch: its last mini-batch is the fourth.
        (1, STAGES, [0, 2, 2, 2, 3, 2], [1, 4, 4, 4, 9, 6]),
        (2, STAGES, [0, 0, 0, 0, 3, 2], [1, 4, 4, 4, 9, 6]),
    ],
)
def test_source_warm_up_leaves_nodes_and_images_out_and_counts_what_is_left(rank, warm_up, sizes, of_all):
    harness = source(24, rank=rank, size=3, batch=3, epochs=2, warm_up=warm_up)
    batches = [batch for (batch,) in steps(harness)]
    assert [batch.size for batch in batches] == [len(batch.images) for batch in batches] == sizes
    assert [batch.of_all for batch in batches] == of_all
    assert [batch.epoch for batch in batches] == [3 / 8, 6 / 8, 1, 11 / 8, 14 / 8, 2]


def test_source_warm_up_of_more_nodes_than_there_are_says_what_to_do():
    with pytest.raises(ConfigError, match=r"^4 nodes cannot begin where there are 3; use more nodes, or 3 at most"):
        source(24, size=3, warm_up=(WarmUp(nodes=1, epochs=1), WarmUp(nodes=4, epochs=1)))


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_source_shards_tile_the_mini_batch(shards):
    whole = steps(source(10, batch=4, epochs=1))
    parts = steps(source(10, batch=4, epochs=1), shards=shards)
    for (batch,), step in zip(whole, parts, strict=True):
        assert [number for shard in step for number in numbers(shard)] == numbers(batch)
        assert {shard.size for shard in step} == {batch.size}
        lengths = [len(shard.images) for shard in step]
        assert max(lengths) - min(lengths) <= 1
        assert [(shard.shard, shard.shards) for shard in step] == [(i, shards) for i in range(shards)]


def test_source_labels_and_pixels_belong_to_the_sample():
    for (batch,) in steps(source(10, batch=4, epochs=1)):
        assert batch.labels.tolist() == [number % 2 for number in numbers(batch)]
        assert (batch.images.dtype, batch.labels.dtype) == (np.float32, np.int64)


def test_source_order_depends_on_seed_epoch_and_rank_only():
    assert seen(source(20, seed=3, batch=4, epochs=2)) == seen(source(20, seed=3, batch=7, epochs=2))
    assert seen(source(20, seed=3, batch=4, epochs=1)) != seen(source(20, seed=4, batch=4, epochs=1))
    two = seen(source(20, seed=3, batch=4, epochs=2))
    assert two[:20] != two[20:]
    places = [[number // 2 for number in seen(source(20, rank=rank, size=2, batch=4, epochs=1))] for rank in (0, 1)]
    assert places[0] != places[1]


@pytest.mark.parametrize(("keep_last", "sizes"), [(True, [4, 4, 2]), (False, [4, 4])])
def test_source_last_partial_batch_is_kept_or_dropped(keep_last, sizes):
    batches = steps(source(10, batch=4, epochs=1, keep_last=keep_last))
    assert [batch.size for (batch,) in batches] == sizes


def test_source_epoch_counts_images_with_fraction():
    epochs = [batch.epoch for (batch,) in steps(source(10, batch=4, epochs=2))]
    assert epochs == pytest.approx([0.4, 0.8, 1.0, 1.4, 1.8, 2.0])
    assert [epochs[2], epochs[5]] == [1.0, 2.0]


def test_source_epoch_without_the_last_batch_ends_at_one():
    assert [batch.epoch for (batch,) in steps(source(10, batch=4, epochs=1, keep_last=False))] == [0.5, 1.0]


@pytest.mark.parametrize(("epochs", "count"), [(0.01, 1), (0.5, 3), (0.7, 4), (1, 5), (1.5, 8), (2.5, 13)])
def test_source_fractional_epochs_end_at_the_nearest_batch(epochs, count):
    assert len(steps(source(10, batch=2, epochs=epochs))) == count


def test_source_without_epochs_never_ends():
    assert len(steps(source(4, batch=4), most=30)) == 30


def test_source_batch_larger_than_the_share_is_the_share():
    assert [batch.size for (batch,) in steps(source(6, size=2, batch=32, epochs=1, keep_last=False))] == [3]


def test_source_holdout_keeps_validation_images_out():
    rows = training_rows(20, 0.25, seed=5)
    assert sorted(seen(source(20, batch=4, epochs=1, holdout=0.25, seed=5))) == rows.tolist()
    assert len(rows) == 15


def test_source_more_nodes_than_images_raises():
    with pytest.raises(ConfigError, match="every node needs a training image, and 3 nodes share 2"):
        source(2, size=3)


def test_source_holdout_that_leaves_nothing_raises():
    with pytest.raises(ConfigError, match=r"leaves one part empty.*use holdout=0"):
        source(4, holdout=0.01)


@pytest.mark.parametrize(
    ("images", "nodes", "batch", "keep_last", "expected"),
    [(10, 1, 4, True, 3), (10, 1, 4, False, 2), (11, 3, 2, True, 2), (2, 1, 4, False, 1)],
)
def test_steps_per_epoch_worked_out(images, nodes, batch, keep_last, expected):
    assert steps_per_epoch(images, nodes, batch, keep_last=keep_last) == expected


@pytest.mark.parametrize("loader", ["no_such_module:load", "tiny_data:missing"])
def test_open_data_loader_that_cannot_be_imported_raises(loader):
    with pytest.raises(DataError, match="the data loader cannot be imported"):
        open_data(DataRef(loader=loader, name="1"))


def test_open_data_twice_shares_the_arrays():
    assert open_data(data(7)).train_images is open_data(data(7)).train_images


def test_pixels_are_float32_between_zero_and_one():
    scaled = pixels(np.array([0, 5, 10], np.uint8), 10.0)
    assert scaled.dtype == np.float32
    assert scaled.tolist() == [0.0, 0.5, 1.0]
    assert math.isclose(float(pixels(np.array([255], np.uint8), 255.0)[0]), 1.0)


def read_on(count, *, live, steps_before, rank=1, size=3, redivide="epoch", batch=2):
    """The mini-batches of a node before and after others have died."""
    harness = source(count, rank=rank, size=size, batch=batch, epochs=2, redivide=redivide)
    before = [harness.send(Tick(step, 0, 1))[0].message for step in range(steps_before)]
    for member in set(range(size)) - set(live):
        harness.states["roll"].leave(member)
    after = []
    for step in range(steps_before, 100):
        (effect,) = harness.send(Tick(step, 0, 1))
        if isinstance(effect, EndOfData):
            return before, after
        after.append(effect.message)
    raise AssertionError


def went_on(count, **fields):
    """The images in them."""
    before, after = read_on(count, **fields)
    return [numbers(batch) for batch in before], [numbers(batch) for batch in after]


def test_source_mini_batches_begin_where_those_before_ended_also_once_others_have_died():
    before, after = read_on(15, live=(1,), steps_before=1)  # 2, 2 and 1 of 5 images; then 15 are its own
    whole = [*before, *after]
    assert [batch.epoch for batch in whole[:4]] == pytest.approx([0.4, 0.8, 1.0, 1 + 2 / 15])
    assert [batch.epoch_before for batch in whole] == pytest.approx([0.0, *(batch.epoch for batch in whole[:-1])])
    assert whole[-1].epoch == 2.0


def test_source_of_a_node_whose_peer_died_reads_its_own_share_to_the_end_of_the_epoch_and_half_of_all_after():
    before, after = went_on(12, live=(1, 2), steps_before=1)
    assert sorted(before[0] + after[0]) == [1, 4, 7, 10]
    # Ranks 0 and 1 of two, which are nodes 1 and 2: samples 0, 2, ... are node 1's.
    assert sorted(number for batch in after[1:] for number in batch) == [0, 2, 4, 6, 8, 10]


def test_source_that_redivides_now_goes_on_as_far_in_its_new_share_as_it_was():
    before, after = went_on(12, live=(1,), steps_before=1, redivide="now")
    # One mini-batch of two was read: half of the epoch, so three of six are left; then all twelve.
    assert len(before) == 1
    assert [len(batch) for batch in after] == [2] * 9
    assert sorted(number for batch in after[3:] for number in batch) == list(range(12))


def test_source_of_a_node_that_has_come_back_waits_until_it_has_caught_up_and_goes_on_there():
    roll, course = RollState(1, range(3), 1), CourseState()
    node = NodeContext(index=1, members={"worker": (0, 1, 2)}, incarnation=1)
    harness = Harness(Source(data=data(12), batch=2, epochs=2), node=node, states={"roll": roll, "course": course})
    assert not harness.ready()
    roll.settle()
    assert harness.ready()
    course.start(3, 1.5)
    batches = steps(harness)
    assert [(batch.step, batch.epoch) for (batch,) in batches] == [(0, 2.0)]
    assert (course.number, course.closed) == (4, True)


def test_source_of_a_node_with_nobody_to_catch_up_with_ends():
    roll, course = RollState(1, range(3), 1), CourseState()
    node = NodeContext(index=1, members={"worker": (0, 1, 2)}, incarnation=1)
    harness = Harness(Source(data=data(12)), node=node, states={"roll": roll, "course": course})
    roll.idle = True
    assert harness.ready()
    assert harness.send(Tick(0, 0, 1)) == [EndOfData()]
    assert course.closed


def test_source_that_is_told_that_there_is_enough_ends_behind_the_mini_batch_that_it_has_begun():
    roll = RollState(0, range(1), 0)
    node = NodeContext(index=0, members={"worker": (0,)})
    harness = Harness(Source(data=data(12), batch=4), node=node, states={"roll": roll, "course": Course()})
    first = harness.send(Tick(0, 0, 2))
    roll.idle = True
    assert [len(numbers(effect.message)) for effect in first + harness.send(Tick(0, 1, 2))] == [2, 2]
    assert [harness.send(Tick(1, shard, 2)) for shard in (0, 1)] == [[EndOfData()]] * 2
