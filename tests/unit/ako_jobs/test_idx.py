import gzip
import lzma
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ako_jobs.idx import MAX_NBYTES, read_images, read_labels
from dataflow.errors import DataError

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
IMAGES = struct.pack(">4I", 2051, 2, 3, 4) + PIXELS.tobytes()
LABELS = struct.pack(">2I", 2049, 3) + bytes([7, 0, 9])
PACKED = gzip.compress(IMAGES, mtime=0)


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_read_images_raw_or_packed_returns_the_pixels(tmp_path, suffix, pack):
    path = tmp_path / f"images-idx3-ubyte{suffix}"
    path.write_bytes(pack(IMAGES))
    images = read_images(path)
    assert images.dtype == np.uint8
    assert np.array_equal(images, PIXELS)


def test_read_labels_valid_file_returns_the_labels(tmp_path):
    path = tmp_path / "labels-idx1-ubyte"
    path.write_bytes(LABELS)
    assert read_labels(path).tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "header with 3 dimension.s. has 16 bytes .got an empty file."),
        (IMAGES[:3], "has 16 bytes .got 3 bytes."),
        (IMAGES[:15], "has 16 bytes .got 15 bytes."),
        (IMAGES[:-1], r"declares shape \(2, 3, 4\), 24 bytes of values .got 23 bytes, cut short."),
        (IMAGES[:16], "got 0 bytes, cut short"),
        (IMAGES + b"\0", "24 bytes of values .got more than that."),
        (LABELS, "starts with the number 2051 .got 2049.*swapped"),
        (b"<!DOCTYPE html><html>404", "starts with the number 2051 .got 1008813135."),
        (struct.pack(">4I", 2051, 0, 28, 28), r"declare 1 to 268435456 bytes of values .got shape \(0, 28, 28\)"),
        (struct.pack(">4I", 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1), "declare 1 to 268435456 bytes of values"),
        (struct.pack(">4I", 2051, 1, 1, MAX_NBYTES + 1), "declare 1 to 268435456 bytes of values"),
        (PACKED, "gzip-compressed but .* rename it to images.gz"),
    ],
)
def test_read_images_damaged_raw_file_raises_naming_file_and_fault(tmp_path, content, what):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError, match=what) as caught:
        read_images(path)
    assert str(path) in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("images.gz", IMAGES, "not a sound gzip file: Not a gzipped file"),
        ("images.gz", PACKED[:-9], "not a sound gzip file: Compressed file ended"),
        ("images.gz", PACKED[:-8] + bytes(8), "not a sound gzip file: CRC check failed"),
        ("images.gz", PACKED + b"x", "not a sound gzip file"),
        ("images.gz", b"", "got an empty file"),
        ("images.xz", IMAGES, "not a sound xz file"),
    ],
)
def test_read_images_damaged_packed_file_raises_naming_file_and_fault(tmp_path, name, content, what):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=what) as caught:
        read_images(path)
    assert str(path) in str(caught.value)


def test_read_images_missing_file_or_folder_raises_data_error(tmp_path):
    with pytest.raises(DataError, match=r"not readable.*No such file"):
        read_images(tmp_path / "absent")
    with pytest.raises(DataError, match=r"not readable.*directory"):
        read_images(tmp_path)


def test_read_images_gzip_bomb_is_refused_without_unpacking_it(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(IMAGES + bytes(32 * 2**20)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="more than that"):
            read_images(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


@settings(deadline=None)  # a busy disk is no failure
@given(data=st.data())
def test_read_images_gzip_file_cut_or_altered_loads_equal_or_raises_data_error(tmp_path_factory, data):
    packed = bytearray(gzip.compress(IMAGES, mtime=0))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(packed) - 1), st.integers(0, 255)), max_size=4)):
        packed[at] = value
    del packed[data.draw(st.integers(0, len(packed))) :]
    path = tmp_path_factory.getbasetemp() / "fuzzed.gz"
    path.write_bytes(packed)
    try:
        images = read_images(path)
    except DataError:
        return
    assert np.array_equal(images, PIXELS)


@settings(deadline=None)  # a busy disk is no failure
@given(at=st.integers(0, 15), value=st.integers(0, 255), keep=st.integers(0, len(IMAGES)))
def test_read_images_raw_header_altered_or_file_cut_loads_equal_or_raises_data_error(tmp_path_factory, at, value, keep):
    content = bytearray(IMAGES)
    content[at] = value
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_bytes(content[:keep])
    try:
        images = read_images(path)
    except DataError:
        return
    assert np.array_equal(images, PIXELS)
