from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from dataflow.errors import OperatorError
from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.messages import Batch
from operators.preprocess import Normalise, RandomFlip, RandomShift, Resize


def batch(images, step=0, shard=0):
    images = np.asarray(images, np.float32)
    images.flags.writeable = False
    return Batch(
        step, shard, 2, images, np.arange(len(images)), size=2 * len(images), epoch_before=0.0, epoch=0.25, of_all=8
    )


def through(operator, message, node=None):
    harness = Harness(operator, node=node)
    (effect,) = harness.send(message)
    images = effect.message.images
    assert images.dtype == np.float32
    assert images.flags.c_contiguous
    kept = replace(effect.message, images=message.images)
    assert (kept.step, kept.shard, kept.size, kept.epoch) == (message.step, message.shard, message.size, message.epoch)
    assert kept.labels is message.labels
    return images


PICTURE = np.arange(2 * 1 * 2 * 3).reshape(2, 1, 2, 3)


def test_normalise_two_channels_subtracts_and_divides_each_by_its_own():
    images = np.array([[[[0.5, 1.0]], [[0.0, 0.25]]]])
    out = through(Normalise(mean=(0.5, 0.25), std=(0.25, 0.5)), batch(images))
    assert out.tolist() == [[[[0.0, 2.0]], [[-0.5, 0.0]]]]


def test_normalise_images_with_other_channels_raise():
    with pytest.raises(OperatorError, match="images have 1 channels, mean and std have 3"):
        through(Normalise(mean=(0, 0, 0), std=(1, 1, 1)), batch(PICTURE))


@pytest.mark.parametrize(("mean", "std"), [((0.0,), (0.0,)), ((0.0,), (1.0, 1.0)), ((), ())])
def test_normalise_impossible_parameters_are_refused(mean, std):
    with pytest.raises(ValidationError):
        Normalise(mean=mean, std=std)


def test_resize_to_half_takes_the_pixel_behind_the_middle():
    images = np.arange(16).reshape(1, 1, 4, 4)
    assert through(Resize(height=2, width=2), batch(images)).tolist() == [[[[5, 7], [13, 15]]]]


def test_resize_to_double_repeats_every_pixel():
    images = np.array([[[[1, 2]]]])
    assert through(Resize(height=2, width=4), batch(images)).tolist() == [[[[1, 1, 2, 2], [1, 1, 2, 2]]]]


def test_random_shift_of_nothing_changes_nothing():
    assert np.array_equal(through(RandomShift(pixels=0), batch(PICTURE)), PICTURE)


def test_random_shift_every_image_is_a_shifted_copy_filled_up():
    images = np.arange(900).reshape(50, 2, 3, 3).astype(np.float32)
    out = through(RandomShift(pixels=1, fill=-1.0), batch(images))
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
    offsets = set()
    for before, after in zip(padded, out, strict=True):
        fits = [(y, x) for y in range(3) for x in range(3) if np.array_equal(before[:, y : y + 3, x : x + 3], after)]
        assert len(fits) == 1
        offsets.update(fits)
    assert offsets == {(y, x) for y in range(3) for x in range(3)}


def test_random_flip_surely_mirrors_every_image():
    assert np.array_equal(through(RandomFlip(probability=1), batch(PICTURE)), PICTURE[:, :, :, ::-1])


def test_random_flip_never_changes_nothing():
    assert np.array_equal(through(RandomFlip(probability=0), batch(PICTURE)), PICTURE)


def test_random_flip_half_mirrors_some_of_the_images():
    images = np.tile(PICTURE[:1], (200, 1, 1, 1))
    out = through(RandomFlip(), batch(images))
    flipped = sum(np.array_equal(image, PICTURE[0, :, :, ::-1]) for image in out)
    kept = sum(np.array_equal(image, PICTURE[0]) for image in out)
    assert flipped + kept == 200
    assert 70 <= flipped <= 130


@pytest.mark.parametrize("operator", [RandomShift(pixels=1), RandomFlip()])
def test_random_operators_depend_on_seed_node_step_and_shard_only(operator):
    images = np.arange(40 * 9).reshape(40, 1, 3, 3)
    first = through(operator, batch(images))
    assert np.array_equal(through(operator, batch(images)), first)
    members = {"worker": (0, 1)}
    others = [
        through(operator, batch(images, step=1)),
        through(operator, batch(images, shard=1)),
        through(operator, batch(images), NodeContext(seed=1)),
        through(operator, batch(images), NodeContext(index=1, members=members)),
    ]
    assert not any(np.array_equal(other, first) for other in others)


@pytest.mark.parametrize(
    "operator", [Normalise(mean=(0.5,), std=(2,)), Resize(height=1, width=1), RandomShift(), RandomFlip()]
)
def test_preprocessing_an_empty_shard_gives_an_empty_shard(operator):
    assert len(through(operator, batch(np.zeros((0, 1, 2, 3))))) == 0
