"""Download published files, each checked against its size and SHA-256, from the first mirror that serves it.

A file appears under its name only after its checksum matched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pooch

from dataflow.errors import DataError

Progress = Callable[[str, int, int], None]
"""Called as (file name, bytes received so far, bytes in all) after each piece of a download."""

_CHUNK_NBYTES = 2**16


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its name, its exact size in bytes and its SHA-256 in hexadecimal."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """Where files are published: base URLs ending in "/", tried in order, and the files each holds."""

    mirrors: tuple[str, ...]
    files: tuple[RemoteFile, ...]


def download(source: Source, folder: Path, progress: Progress | None = None) -> Path:
    """Put every file of `source` in `folder`, creating it; files already there and sound are kept.

    Returns:
        `folder`.

    Raises:
        DataError: the folder cannot be made, or no mirror served a file with the right size and
            checksum; it names the mirrors and why each failed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"the folder for downloads cannot be created: {error}"
        raise DataError(what, where=str(folder), fix="choose another folder") from error
    for file in source.files:
        _download_file(file, source.mirrors, folder, progress)
    return folder


def _download_file(file: RemoteFile, mirrors: tuple[str, ...], folder: Path, progress: Progress | None) -> None:
    def get(url: str, target: str, _: object) -> None:
        with Path(target).open("wb") as out:
            # "identity": a mirror that compresses in transit would hand over other bytes than were hashed.
            http = pooch.HTTPDownloader(headers={"Accept-Encoding": "identity"}, chunk_size=_CHUNK_NBYTES)
            http(url, _Bounded(out, file, progress), None)

    failures = []
    for mirror in mirrors:
        url = mirror + file.name
        try:
            pooch.retrieve(url, f"sha256:{file.sha256}", fname=file.name, path=folder, downloader=get)
        # requests' errors are OSErrors; pooch reports a wrong checksum as ValueError.
        except (OSError, ValueError) as error:
            failures.append(f"{url}: {error}")
        else:
            return
    reasons = " | ".join(failures)
    what = f"{file.name} could not be downloaded with its published checksum from any mirror: {reasons}"
    fix = f"check the network, or put the file in {folder} yourself"
    raise DataError(what, where=str(folder), fix=fix)


class _Bounded:
    """The file-like target of one download; stops a mirror that sends more than the published size."""

    def __init__(self, out: IO[bytes], file: RemoteFile, progress: Progress | None) -> None:
        self._out = out
        self._file = file
        self._progress = progress
        self._done = 0

    def write(self, chunk: bytes) -> None:
        self._done += len(chunk)
        if self._done > self._file.nbytes:
            message = f"sends more than the {self._file.nbytes} bytes of {self._file.name}"
            raise ValueError(message)
        self._out.write(chunk)
        if self._progress is not None:
            self._progress(self._file.name, self._done, self._file.nbytes)

    def flush(self) -> None:
        """Nothing: the file is flushed when it closes."""
