import gzip
import io
import lzma
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ako_jobs import cifar
from dataflow.errors import DataError

NAMES = (*cifar.TRAIN_BATCHES, cifar.TEST_BATCH)
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), np.uint8)
RECORDS = b"".join(bytes([label]) + PIXELS[i].tobytes() for i, label in enumerate([9, 4]))


def tar_bytes(contents):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def official(names=NAMES):
    return {f"cifar-10-batches-bin/{name}": RECORDS for name in names}


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)])
def test_read_batch_raw_or_packed_returns_channels_first_images_and_labels(tmp_path, suffix, pack):
    path = tmp_path / f"data_batch_1.bin{suffix}"
    path.write_bytes(pack(RECORDS))
    images, labels = cifar.read_batch(path)
    assert np.array_equal(images, PIXELS)
    assert labels.tolist() == [9, 4]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "1 to 10000 records of 3073 bytes .got 0 bytes."),
        (RECORDS[:-1], "1 to 10000 records of 3073 bytes .got 6145 bytes."),
        (RECORDS[:3073] + b"\x0a" + RECORDS[3074:], "a CIFAR-10 label is 0 to 9 .got 10 in record 1."),
    ],
)
def test_read_batch_damaged_file_raises_naming_file_and_fault(tmp_path, content, what):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=what) as caught:
        cifar.read_batch(path)
    assert str(path) in str(caught.value)


def test_read_batch_one_record_too_many_is_refused(tmp_path):
    path = tmp_path / "data_batch_1.bin.gz"
    path.write_bytes(gzip.compress(bytes(10_001 * 3073), 1))
    with pytest.raises(DataError, match="got more than 30730000 bytes"):
        cifar.read_batch(path)


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_read_folder_six_batches_in_it_or_its_subfolder_are_read(tmp_path, below):
    folder = tmp_path / below
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        (folder / f"{name}.xz").write_bytes(lzma.compress(RECORDS))
    assert set(cifar.read_folder(tmp_path)) == set(NAMES)


def test_read_folder_some_batches_missing_raises_naming_them(tmp_path):
    (tmp_path / "data_batch_2.bin").write_bytes(RECORDS)
    with pytest.raises(DataError, match=r"got no data_batch_1.bin, data_batch_3.bin.*test_batch.bin\).*ako data fetch"):
        cifar.read_folder(tmp_path)


def test_read_folder_nothing_there_returns_none(tmp_path):
    assert cifar.read_folder(tmp_path) is None


def test_read_folder_archive_is_read_in_place_ignoring_other_members(tmp_path):
    contents = {"../escape": b"x", "cifar-10-batches-bin/readme.html": b"<html>"} | official()
    (tmp_path / cifar.ARCHIVE).write_bytes(gzip.compress(tar_bytes(contents)))
    batches = cifar.read_folder(tmp_path)
    assert set(batches) == set(NAMES)
    assert all(np.array_equal(images, PIXELS) for images, _ in batches.values())
    assert [path.name for path in tmp_path.iterdir()] == [cifar.ARCHIVE]


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)  # the same in every process that collects tests


@pytest.mark.parametrize(
    ("archive", "what"),
    [
        (b"not gzip at all", "not a sound gzip file"),
        (packed(b"not tar at all" * 100), "not a sound tar archive"),
        (packed(tar_bytes({"readme": b"x"})), "five training batches and a test batch .got no data_batch_1.bin"),
        (packed(tar_bytes(official(NAMES[:-1]))), "got no test_batch.bin"),
        (packed(tar_bytes(official()))[:-4], "not a sound gzip file"),
        (packed(tar_bytes(official()))[:-8] + bytes(8), "not a sound gzip file: CRC check failed"),
        (packed(tar_bytes(official())[:4000]), "not a sound tar archive: unexpected end of data"),
        (
            packed(tar_bytes(official() | {"cifar-10-batches-bin/test_batch.bin": b"123"})),
            "got 3 bytes. at .*tar.gz:cifar-10-batches-bin/test_batch.bin",
        ),
    ],
)
def test_read_archive_damaged_or_incomplete_raises_naming_file_and_fault(tmp_path, archive, what):
    path = tmp_path / cifar.ARCHIVE
    path.write_bytes(archive)
    with pytest.raises(DataError, match=what) as caught:
        cifar.read_archive(path)
    assert str(path) in str(caught.value)


def test_read_archive_batch_is_a_link_raises_data_error(tmp_path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    path = tmp_path / cifar.ARCHIVE
    path.write_bytes(packed.getvalue())
    with pytest.raises(DataError, match=r"is a plain file of at most 30730000 bytes .got type b'2'"):
        cifar.read_archive(path)


def test_read_archive_unpacks_to_more_than_allowed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "MAX_ARCHIVE_NBYTES", 10**6)
    path = tmp_path / cifar.ARCHIVE
    path.write_bytes(gzip.compress(tar_bytes({"bomb": bytes(2 * 10**6)})))
    with pytest.raises(DataError, match="unpacks to more than the 1000000 bytes allowed"):
        cifar.read_archive(path)


def with_checksum(header: bytes) -> bytes:
    blank = header[:148] + b" " * 8 + header[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


def header(name="readme.html", kind=tarfile.REGTYPE, size=0, **fields):
    """One block: the header of a member whose size is in base 256; `fields` are places and what is put there."""
    member = tarfile.TarInfo(name)
    member.type = kind
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = bytes([0x80 if size >= 0 else 0xFF]) + (size % 2**88).to_bytes(11, "big")
    for at, value in fields.values():
        block[at : at + len(value)] = value
    return with_checksum(bytes(block))


def pax(name, value):
    record = f" {name}={value}\n".encode()
    record = str(len(record) + 2).encode() + record
    return header("pax", tarfile.XHDTYPE, len(record)) + record.ljust(512, b"\0")


SPARSE = {"more": (482, b"\0"), "whole": (483, b"%011o\0" % 5)}


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("first", "what"),
    [
        (header(size=2**80), "a member that ends at byte 1208925819614629174706688. at .*:readme.html;"),
        (header(size=-512), "a member that ends at byte"),
        (header(kind=tarfile.GNUTYPE_SPARSE, size=2**80, **SPARSE), "a member that ends at byte"),
        (pax("size", 2**80) + header(), "a member that ends at byte"),
        (pax("GNU.sparse.size", 5) + header(size=2**80), "a member that ends at byte"),
        (header(kind=tarfile.GNUTYPE_SPARSE, **SPARSE | {"more": (482, b"\1")}), "not a sound tar archive"),
        (header(kind=tarfile.GNUTYPE_LONGNAME) * 3000, "not a sound tar archive"),
    ],
    ids=["beyond", "before", "sparse", "pax", "pax_sparse", "map_cut_short", "names_without_end"],
)
def test_read_archive_member_that_ends_nowhere_raises_data_error(tmp_path, first, what):
    path = tmp_path / cifar.ARCHIVE
    path.write_bytes(packed(first))
    with pytest.raises(DataError, match=what) as caught:
        cifar.read_archive(path)
    assert str(path) in str(caught.value)


@settings(deadline=None)  # a busy disk is no failure
@given(data=st.data())
def test_read_archive_altered_member_header_with_valid_checksum_loads_or_raises_data_error(tmp_path_factory, data):
    content = bytearray(tar_bytes(official()))
    place = data.draw(st.integers(0, 5)) * (512 + 6656)  # each batch of 6,146 bytes takes 13 blocks after its header
    for at, value in data.draw(st.lists(st.tuples(st.integers(100, 511), st.integers(0, 255)), max_size=6)):
        content[place + at] = value
    content[place : place + 512] = with_checksum(bytes(content[place : place + 512]))
    path = tmp_path_factory.getbasetemp() / cifar.ARCHIVE
    path.write_bytes(gzip.compress(content, 1))
    try:
        batches = cifar.read_archive(path)
    except DataError:
        return
    assert set(batches) == set(NAMES)
