import errno
import gzip
import math
import os
import struct
from pathlib import Path

import numpy as np
import pooch
import pytest

from ako_jobs import cifar
from ako_jobs.datasets import NAMES, SOURCES, DataSet, fetch, load
from dataflow.errors import DataError

REAL_DATA = Path(os.environ.get("AKO_DATA_DIR", Path(__file__).parents[3].parent / "shared" / "data"))
needs_mnist = pytest.mark.skipif(
    not (REAL_DATA / "mnist").is_dir(), reason=f"no MNIST files in {REAL_DATA}; set AKO_DATA_DIR"
)
needs_cifar_part = pytest.mark.skipif(
    not (REAL_DATA / "cifar10").is_dir(), reason=f"no CIFAR-10 files in {REAL_DATA}; set AKO_DATA_DIR"
)


def write_idx(folder, part, n_images, n_labels, side=28, label=3):
    pixels = np.random.default_rng(n_images).integers(0, 256, n_images * side * side, np.uint8)
    images = struct.pack(">4I", 2051, n_images, side, side) + pixels.tobytes()
    (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, n_labels) + bytes([label] * n_labels))


def two_images(**changes):
    images = np.array([0, 4, 8, 4, 0, 0, 16, 16], np.uint8).reshape(2, 1, 2, 2)
    part = images, np.array([0, 1], np.uint8)
    arguments = {"train": part, "test": part, "n_classes": 2, "scale": 16} | changes
    return DataSet.from_arrays("two", **arguments)


def test_from_arrays_hand_made_pixels_gives_worked_out_moments():
    data = two_images()
    # Pixels / 16: 0 1/4 1/2 1/4 0 0 1 1, so mean 3/8 and mean square 19/64, variance 19/64 - 9/64 = 10/64.
    assert data.mean == (0.375,)
    assert data.std == pytest.approx([np.sqrt(10) / 8])
    assert data.train_labels.dtype == np.int64


def test_from_arrays_result_is_read_only_and_leaves_the_callers_array_writable():
    images, labels = np.arange(4, dtype=np.uint8).reshape(1, 1, 2, 2), np.zeros(1, np.uint8)
    data = two_images(train=(images, labels))
    with pytest.raises(ValueError, match="read-only"):
        data.train_images[0] = 0
    images[0] = 1


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"n_classes": 1}, "label must be 0 to 0 .got 1 for image 1. at two, training part"),
        ({"test": (np.zeros((1, 1, 3, 3), np.uint8), np.zeros(1, np.uint8))}, r"shape of the training images.*1, 3, 3"),
        ({"n_classes": 0}, r"n_classes must be an integer, 1 to 2147483648 \(got 0\) at two; have it as many as"),
        ({"n_classes": 2.0}, r"n_classes must be an integer.*got 2\.0"),
        ({"n_classes": True}, "n_classes must be an integer.*got True"),
        ({"n_classes": 2**64}, "n_classes must be an integer"),
        ({"scale": 0}, r"scale, the brightest possible pixel, must be .* 0, and 16 or more.*\(got 0\) at two; .*255"),
        ({"scale": -1.0}, "scale, the brightest"),
        ({"scale": math.nan}, "scale, the brightest possible pixel,.*got nan"),
        ({"scale": math.inf}, "scale, the brightest"),
        ({"scale": "16"}, "scale, the brightest .*got '16'"),
        ({"scale": True}, "scale, the brightest"),
        ({"scale": 15.9}, r"scale, the brightest possible pixel,.*got 15\.9"),
        (
            {"scale": 254, "test": (np.full((1, 1, 2, 2), 255, np.uint8), np.zeros(1, int))},
            "and 255 or more here .got 254",
        ),
        ({"train": ([[[[0, 1], [2, 3]]]], np.zeros(1, int))}, r"\(got images a list, labels int64 \(1,\)\).*np.array"),
        ({"train": (np.zeros((1, 1, 2, 2), np.uint8), [0])}, r"\(got images uint8 \(1, 1, 2, 2\), labels a list\)"),
        (
            {"train": np.zeros((1, 1, 2, 2), np.uint8)},
            r"two arrays \(got uint8 \(1, 1, 2, 2\)\) at two, training.*; have",
        ),
        ({"train": (np.zeros((1, 1, 2, 2), np.uint8),)}, "two arrays .got 1 of them"),
        (
            {"test": (np.zeros((1, 1, 2, 2), np.uint8), np.array([2**63], np.uint64))},
            "label must be 0 to 1 .got 9223372036854775808 for image 0. at two, test part; mend the label",
        ),
        (
            {"test": (np.zeros((1, 1, 2, 2), np.uint8), np.zeros(2, np.uint8))},
            r"as many integer labels.*labels uint8 \(2,\)",
        ),
        ({"test": (np.zeros((0, 1, 2, 2), np.uint8), np.zeros(0, np.uint8))}, "not empty"),
        ({"test": (np.zeros((1, 1, 2, 2), np.float32), np.zeros(1, np.uint8))}, "must be uint8"),
        ({"test": (np.zeros((1, 1, 2, 2), np.uint8), np.zeros(1, np.float32))}, "integer labels"),
        ({"test": (np.zeros((1, 1, 2, 2), np.uint8), np.array([-1]))}, "label must be 0 to 1 .got -1 for image 0."),
    ],
)
def test_from_arrays_inconsistent_arrays_raise_naming_the_part(changes, what):
    with pytest.raises(DataError, match=what):
        two_images(**changes)


def test_from_arrays_channel_of_one_value_has_no_deviation():
    images = np.zeros((2, 2, 2, 2), np.uint8)
    images[0, 0] = 16
    data = two_images(train=(images, np.array([0, 1])), test=(images, np.array([0, 1])))
    assert (data.mean, data.std) == ((0.5, 0), (0.5, 0))


def test_load_digits_has_every_class_split_four_to_one_in_file_order():
    data = load("digits")
    assert data.train_images.shape == (1442, 1, 8, 8)
    assert data.test_images.shape == (355, 1, 8, 8)
    assert np.bincount(data.train_labels).tolist() == [143, 146, 142, 147, 145, 146, 145, 144, 140, 144]
    assert np.bincount(data.test_labels).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    assert (data.train_images.max(), data.scale, data.n_classes) == (16, 16, 10)
    # The first line of the file is a zero; its class is held out from the fifth zero on.
    assert data.train_images[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert data.train_labels[0] == 0


def test_load_digits_normalised_training_pixels_have_mean_zero_and_std_one():
    data = load("digits")
    normalised = (data.train_images / data.scale - data.mean[0]) / data.std[0]
    assert normalised.mean() == pytest.approx(0, abs=1e-12)
    assert normalised.std() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("name", "guess"), [("mnits", "mnist"), ("CIFAR-10", "cifar10"), ("fashion", "fashion-mnist")])
def test_load_unknown_name_suggests_the_nearest_and_lists_all(name, guess):
    with pytest.raises(
        DataError, match=f"{name}.*did you mean '{guess}'.*known: cifar10, digits, fashion-mnist, mnist"
    ):
        load(name)


def test_load_folder_that_may_not_be_entered_is_named(tmp_path, monkeypatch):
    def closed(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", closed)
    with pytest.raises(DataError, match="the mnist data may not be read: Permission denied at /"):
        load("mnist", tmp_path)


def test_load_name_like_nothing_known_only_lists_the_names():
    with pytest.raises(DataError, match=r"unknown data set .got zzz.; known: cifar10, digits"):
        load("zzz")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("nested", [False, True])
def test_load_idx_set_gz_and_raw_files_from_the_folder_or_its_parent(tmp_path, name, nested):
    folder = tmp_path / name if nested else tmp_path
    folder.mkdir(exist_ok=True)
    write_idx(folder, "train", 3, 3)
    write_idx(folder, "t10k", 2, 2)
    data = load(name, str(tmp_path))
    assert (data.name, data.train_images.shape, data.test_images.shape) == (name, (3, 1, 28, 28), (2, 1, 28, 28))
    assert data.test_labels.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        ({"n_images": 3, "n_labels": 2}, "holds 3 images, so the label file must hold as many labels .got 2."),
        ({"n_images": 3, "n_labels": 3, "side": 8}, r"mnist images have 28 x 28 pixels .got \(8, 8\)."),
        (
            {"n_images": 3, "n_labels": 3, "label": 10},
            "label must be 0 to 9 .got 10 for image 0. at mnist, training.*data fetch",
        ),
    ],
)
def test_load_mnist_files_that_do_not_belong_together_raise(tmp_path, sample, what):
    write_idx(tmp_path, "train", **sample)
    write_idx(tmp_path, "t10k", 2, 2)
    with pytest.raises(DataError, match=what):
        load("mnist", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_load_files_missing_from_the_user_cache_says_what_to_run(tmp_path, monkeypatch, name):
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    with pytest.raises(DataError, match=f"{tmp_path}/ako; run `ako data fetch {name}`, or pass data_dir="):
        load(name)


def test_load_cifar10_joins_the_training_batches_in_order(tmp_path):
    for number, batch in enumerate((*cifar.TRAIN_BATCHES, cifar.TEST_BATCH)):
        pixels = np.repeat(np.array([number, 10, 20 + number], np.uint8), 1024)
        (tmp_path / batch).write_bytes(bytes([number]) + pixels.tobytes() + bytes([9]) + bytes(3072))
    data = load("cifar10", tmp_path)
    assert data.train_images.shape == (10, 3, 32, 32)
    assert data.train_labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert data.train_images[:, :, 31, 31].tolist()[2] == [1, 10, 21]
    assert data.test_labels.tolist() == [5, 9]
    # Half of the pixels are 0. Red 0..4, green 10, blue 20..24: means 1, 5 and 11.
    assert data.mean == pytest.approx([1 / 255, 5 / 255, 11 / 255])


def test_fetch_embedded_or_unknown_set_raises(tmp_path):
    with pytest.raises(DataError, match="'digits' comes with the package; there is nothing to fetch"):
        fetch("digits", tmp_path)
    with pytest.raises(DataError, match="did you mean 'mnist'"):
        fetch("minst", tmp_path)


def test_sources_cover_every_set_that_does_not_come_with_the_package():
    assert set(NAMES) - set(SOURCES) == {"digits"}


@needs_mnist
def test_load_mnist_published_files_have_the_published_counts_and_moments():
    data = load("mnist", REAL_DATA)
    train_counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test_counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train_images.shape == (60_000, 1, 28, 28)
    assert np.bincount(data.train_labels).tolist() == train_counts
    assert np.bincount(data.test_labels).tolist() == test_counts
    assert data.mean == pytest.approx([0.1307], abs=5e-5)
    assert data.std == pytest.approx([0.3081], abs=5e-5)


@needs_mnist
def test_fetch_mnist_sound_files_already_there_downloads_nothing(tmp_path):
    (tmp_path / "mnist").mkdir()
    for file in SOURCES["mnist"].files:
        (tmp_path / "mnist" / file.name).symlink_to(REAL_DATA / "mnist" / file.name)
        assert (REAL_DATA / "mnist" / file.name).stat().st_size == file.nbytes
    pieces = []
    assert fetch("mnist", tmp_path, lambda *piece: pieces.append(piece)) == tmp_path / "mnist"
    assert pieces == []


@needs_cifar_part
def test_read_batch_first_4000_cifar_images_have_the_published_pixels_and_counts():
    images, labels = cifar.read_batch(REAL_DATA / "cifar10" / "data_batch_1_first4000.bin.xz")
    assert np.bincount(labels).tolist() == [396, 366, 420, 384, 422, 393, 414, 385, 407, 413]
    assert images[0, 0, 0, :3].tolist() == [59, 43, 50]
    assert images[0, 2, 31, -3:].tolist() == [140, 84, 72]


def test_user_without_a_home_has_the_digits_and_is_told_where_others_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # whom no file of users has
    assert load("digits").name == "digits"
    with pytest.raises(DataError, match=r"no home directory, where the files of mnist could be; set HOME"):
        load("mnist")
