"""Open data files that may be damaged or hostile.

Whatever the file holds, a reader here returns or raises `DataError`, and it never decompresses
more than the number of bytes it was asked for plus one.
"""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from dataflow.errors import DataError

FETCH_AGAIN = "fetch the file again from where it was published"
"""What to do about a damaged file."""


class Readable(Protocol):
    """What the parsers need of an open file."""

    def read(self, nbytes: int, /) -> bytes:
        """Return up to `nbytes` bytes, fewer only at the end."""


class CappedStream:
    """A stream that refuses to give more than `cap` bytes in all.

    Args:
        stream: open binary stream.
        cap: bytes; reading past them raises DataError.
        path: named in the error.
    """

    def __init__(self, stream: Readable, cap: int, path: Path) -> None:
        self._stream = stream
        self._cap = cap
        self._left = cap
        self._path = path

    def read(self, nbytes: int) -> bytes:
        """Return up to `nbytes` bytes; DataError when the stream goes on past the cap."""
        data = self._stream.read(min(nbytes, self._left + 1))
        if len(data) > self._left:
            what = f"the file unpacks to more than the {self._cap} bytes allowed"
            raise DataError(what, where=str(self._path), fix=FETCH_AGAIN)
        self._left -= len(data)
        return data


@contextmanager
def open_data(path: Path) -> Iterator[Readable]:
    """Open `path` for reading bytes, unpacking it when its name ends in .gz or .xz.

    Raises:
        DataError: the file cannot be opened, or, while the block runs, cannot be read or unpacked.
    """
    try:
        with _open(path) as stream:
            yield stream
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        kind = {".gz": "a sound gzip file", ".xz": "a sound xz file"}.get(path.suffix, "readable")
        what = f"the file is not {kind}: {error}"
        fix = "fetch it again; if it is not compressed at all, take the .gz or .xz off its name"
        raise DataError(what, where=str(path), fix=fix if path.suffix in {".gz", ".xz"} else "") from error


def _open(path: Path) -> gzip.GzipFile | lzma.LZMAFile | io.BufferedReader:
    if path.suffix == ".gz":
        return gzip.GzipFile(path)
    if path.suffix == ".xz":
        return lzma.LZMAFile(path)
    return path.open("rb")


def first_existing(folder: Path, stem: str, suffixes: tuple[str, ...]) -> Path | None:
    """Return the first of `folder/stem + suffix` that is a file, or None."""
    return next((path for suffix in suffixes if (path := folder / (stem + suffix)).is_file()), None)
