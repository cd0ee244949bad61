"""Read CIFAR-10 in its binary version: batch files, or the published tar archive of them.

A record is 3,073 bytes: one label byte 0..9, then 32x32 red, green and blue bytes, row-major.
A batch is up to 10,000 records and nothing else. Archive members are read in place by exact name;
nothing is extracted to disk. Source: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

import tarfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ako_jobs.reading import FETCH_AGAIN, CappedStream, first_existing, open_data
from dataflow.errors import DataError

TRAIN_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_BATCH = "test_batch.bin"
ARCHIVE = "cifar-10-binary.tar.gz"
BATCH_FOLDER = "cifar-10-batches-bin"
N_CLASSES = 10
RECORD_NBYTES = 1 + 3 * 32 * 32
MAX_BATCH_NBYTES = 10_000 * RECORD_NBYTES
MAX_ARCHIVE_NBYTES = 6 * MAX_BATCH_NBYTES + 2**20
"""Most bytes the archive may unpack to: its six batches, and 1 MiB for headers and other members."""

_UNSOUND = (tarfile.TarError, ValueError, LookupError, ArithmeticError, RecursionError)
"""What tarfile raises of damaged headers: it says so of the first, and stumbles over the others."""

Batch = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Images, uint8 (n, 3, 32, 32), red green blue, and labels, uint8 (n,)."""


def read_batch(path: Path) -> Batch:
    """Read one batch file: images uint8 (n, 3, 32, 32) and labels uint8 (n,); .gz and .xz are unpacked.

    Raises:
        DataError: the file cannot be read or unpacked, is not a whole number (1 to 10,000) of
            records, or has a label above 9.
    """
    with open_data(path) as stream:
        records = stream.read(MAX_BATCH_NBYTES + 1)
    return parse_batch(records, str(path))


def parse_batch(records: bytes, where: str) -> Batch:
    """Split CIFAR-10 records into read-only views: images uint8 (n, 3, 32, 32), labels uint8 (n,).

    Raises:
        DataError: not a whole number (1 to 10,000) of records, or a label above 9; names `where`.
    """
    if not records or len(records) > MAX_BATCH_NBYTES or len(records) % RECORD_NBYTES:
        what = f"a CIFAR-10 batch is 1 to 10000 records of {RECORD_NBYTES} bytes"
        over = len(records) > MAX_BATCH_NBYTES
        got = f"more than {MAX_BATCH_NBYTES} bytes" if over else f"{len(records)} bytes"
        raise DataError(what, got=got, where=where, fix=FETCH_AGAIN)
    table = np.frombuffer(records, np.uint8).reshape(-1, RECORD_NBYTES)
    labels = table[:, 0]
    if (wrong := np.flatnonzero(labels >= N_CLASSES)).size:
        what = "a CIFAR-10 label is 0 to 9"
        got = f"{labels[wrong[0]]} in record {wrong[0]}"
        raise DataError(what, got=got, where=where, fix="this is perhaps CIFAR-100; " + FETCH_AGAIN)
    return table[:, 1:].reshape(-1, 3, 32, 32), labels


def read_folder(folder: Path) -> dict[str, Batch] | None:
    """Read the six batches from `folder`, its cifar-10-batches-bin folder, or its tar archive.

    Batch files may also end in .bin.xz or .bin.gz.

    Returns:
        The batches by file name (TRAIN_BATCHES and TEST_BATCH), or None when there are none.

    Raises:
        DataError: only some of the batches are there, or one is damaged.
    """
    names = (*TRAIN_BATCHES, TEST_BATCH)
    for place in (folder, folder / BATCH_FOLDER):
        paths = {name: first_existing(place, name, ("", ".xz", ".gz")) for name in names}
        found = {name: path for name, path in paths.items() if path is not None}
        if found:
            _require_all(found.keys(), str(place))
            return {name: read_batch(path) for name, path in found.items()}
    archive = folder / ARCHIVE
    return read_archive(archive) if archive.is_file() else None


def read_archive(path: Path) -> dict[str, Batch]:
    """Read the six batches from the published tar archive, by file name.

    Raises:
        DataError: the archive cannot be read, unpacks to more than MAX_ARCHIVE_NBYTES, lacks a
            batch, or holds a damaged one.
    """
    members = {f"{BATCH_FOLDER}/{name}": name for name in (*TRAIN_BATCHES, TEST_BATCH)}
    batches: dict[str, Batch] = {}
    with open_data(path) as unpacked:
        stream = CappedStream(unpacked, MAX_ARCHIVE_NBYTES, path)
        try:
            # "r|": one pass, no seeking; mypy's stubs want more of the stream than that needs.
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
                for member in archive:
                    _require_end(archive, member, path)
                    if member.name in members:
                        records = _read_member(archive, member, path)
                        batches[members[member.name]] = parse_batch(records, f"{path}:{member.name}")
        except _UNSOUND as error:
            what = f"the file is not a sound tar archive: {error}"
            raise DataError(what, where=str(path), fix=FETCH_AGAIN) from error
        # To the end of the file, so that gzip verifies its checksum.
        while stream.read(2**16):
            pass
    _require_all(batches.keys(), str(path))
    return batches


def _require_end(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    # Where the next header is said to be. tarfile goes there by reads that the end of the file does not stop, and
    # what it tells of a sparse member is another size than the one it goes by.
    if not member.offset_data <= archive.offset <= MAX_ARCHIVE_NBYTES:
        what = f"the file unpacks to more than the {MAX_ARCHIVE_NBYTES} bytes allowed, or to less than nothing"
        got = f"a member that ends at byte {archive.offset}"
        raise DataError(what, got=got, where=f"{path}:{member.name}", fix=FETCH_AGAIN)


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    # A sparse member unpacks to more than it stores; a link would name some other file.
    plain = member.isreg() and not member.issparse() and member.size <= MAX_BATCH_NBYTES
    source = archive.extractfile(member) if plain else None
    if source is None:
        what = f"an archived CIFAR-10 batch is a plain file of at most {MAX_BATCH_NBYTES} bytes"
        got = f"type {member.type!r}, {member.size} bytes"
        raise DataError(what, got=got, where=f"{path}:{member.name}", fix=FETCH_AGAIN)
    return source.read()


def _require_all(found: Collection[str], where: str) -> None:
    if missing := [name for name in (*TRAIN_BATCHES, TEST_BATCH) if name not in found]:
        what = "CIFAR-10 has five training batches and a test batch"
        raise DataError(what, got="no " + ", ".join(missing), where=where, fix="run `ako data fetch cifar10`")
