"""Read idx files, the format of MNIST and Fashion-MNIST.

An idx file is a big-endian header (u32 magic = 0x0800 + number of dimensions for unsigned bytes,
then one u32 per dimension) and the values, row-major. Invariant: the values fill the declared
shape exactly. Source: http://yann.lecun.com/exdb/mnist/, "File formats for the MNIST database".
"""

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ako_jobs.reading import FETCH_AGAIN, open_data
from dataflow.errors import DataError

MAX_NBYTES = 256 * 2**20
"""Largest payload an idx header may declare, in bytes; MNIST's largest file has 47,040,000."""

_UNSIGNED_BYTES = 0x0800


def read_images(path: Path) -> NDArray[np.uint8]:
    """Read an idx3 file (magic 2051): uint8 (n, rows, columns), 0 = background.

    Raises:
        DataError: see `read_idx`.
    """
    return read_idx(path, n_dims=3)


def read_labels(path: Path) -> NDArray[np.uint8]:
    """Read an idx1 file (magic 2049): uint8 (n,).

    Raises:
        DataError: see `read_idx`.
    """
    return read_idx(path, n_dims=1)


def read_idx(path: Path, n_dims: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes with `n_dims` dimensions; .gz and .xz are unpacked.

    Returns:
        Read-only uint8 array in the declared shape.

    Raises:
        DataError: the file cannot be read or unpacked, is empty or cut short, has another magic
            number, declares an empty dimension or more than MAX_NBYTES, or holds more or fewer
            values than it declares.
    """
    with open_data(path) as stream:
        shape = _read_shape(stream.read(4 + 4 * n_dims), n_dims, path)
        nbytes = math.prod(shape)
        if nbytes == 0 or nbytes > MAX_NBYTES:
            what = f"the idx header must declare 1 to {MAX_NBYTES} bytes of values"
            raise DataError(what, got=f"shape {shape}, {nbytes} bytes", where=str(path), fix=FETCH_AGAIN)
        # One byte more than declared: finds surplus data, and makes gzip verify its checksum.
        payload = stream.read(nbytes + 1)
    if len(payload) != nbytes:
        got = f"{len(payload)} bytes, cut short" if len(payload) < nbytes else "more than that"
        what = f"the idx header declares shape {shape}, {nbytes} bytes of values"
        raise DataError(what, got=got, where=str(path), fix=FETCH_AGAIN)
    return np.frombuffer(payload, np.uint8).reshape(shape)


def _read_shape(header: bytes, n_dims: int, path: Path) -> tuple[int, ...]:
    magic = _UNSIGNED_BYTES + n_dims
    if header[:2] == b"\x1f\x8b":
        what = "the file is gzip-compressed but its name does not end in .gz"
        raise DataError(what, where=str(path), fix=f"rename it to {path.name}.gz")
    if len(header) >= 4 and (found := int.from_bytes(header[:4], "big")) != magic:
        what = f"an idx file of unsigned bytes in {n_dims} dimension(s) starts with the number {magic}"
        fix = "check that images and labels are not swapped, or fetch the file again"
        raise DataError(what, got=found, where=str(path), fix=fix)
    if len(header) < 4 + 4 * n_dims:
        what = f"an idx header with {n_dims} dimension(s) has {4 + 4 * n_dims} bytes"
        got = f"{len(header)} bytes" if header else "an empty file"
        raise DataError(what, got=got, where=str(path), fix=FETCH_AGAIN)
    return struct.unpack(f">{n_dims}I", header[4:])
