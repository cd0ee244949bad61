"""Where checkpoints are kept: folders of a file system, or of an object store, whose files come whole or not at all.

Invariant: a file that has its name has its whole content, on the disk, whatever is killed when.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

from dataflow.errors import ConfigError
from dataflow.home import expanded

PIECE_NBYTES = 1 << 20
"""Bytes that are read at a time."""

_PARTIAL = ".part"

Pieces = Generator[bytes, None, None]
"""The content of a file; it is open until all has come, or this is closed."""


class Writer(Protocol):
    """A file that is being written."""

    def write(self, data: bytes) -> None:
        """Write more of it."""

    def commit(self) -> None:
        """Give it its name: from now on it is there, whole."""

    def discard(self) -> None:
        """Leave nothing of it; never raises."""


class Folder(Protocol):
    """A folder of folders of files. Everything but `Writer.discard` raises `OSError`."""

    @property
    def place(self) -> str:
        """Its path or address, for people."""

    def begin(self, folder: str, name: str) -> Writer:
        """Begin a file."""

    def read(self, folder: str, name: str) -> Pieces:
        """A file's content, in pieces; whoever does not want all of them closes it.

        Raises:
            FileNotFoundError: there is none.
        """

    def folders(self) -> list[str]:
        """Names of the folders in it; none if it does not exist."""

    def remove(self, folder: str, first: str) -> None:
        """Remove a folder with its files, the one called `first` before the others."""


class Disk:
    """What a `LocalFolder` asks of the operating system; tests have it fail."""

    def make(self, folder: Path) -> None:
        """Make a folder, and those above it; nothing if it is there."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def open(self, path: Path) -> int:
        """Begin a file anew; returns its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of `data`; returns how many bytes."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Have the disk hold what was written."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)

    def rename(self, path: Path, name: Path) -> None:
        """Give a file another name."""
        path.replace(name)

    def sync_folder(self, folder: Path) -> None:
        """Have the disk hold the names in a folder."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def unlink(self, path: Path) -> None:
        """Remove a file; nothing if there is none."""
        path.unlink(missing_ok=True)

    def remove(self, folder: Path) -> None:
        """Remove a folder with all that is in it."""
        shutil.rmtree(folder, ignore_errors=True)


class LocalFolder:
    """A folder of a file system.

    Args:
        path: its path; made when the first file is begun.
        disk: the operating system.
    """

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._path, self._disk = path, disk or Disk()

    @property
    def place(self) -> str:
        """See `Folder`."""
        return str(self._path)

    def begin(self, folder: str, name: str) -> Writer:
        """See `Folder`."""
        self._disk.make(self._path / folder)
        return _LocalWriter(self._path / folder / name, self._disk)

    def read(self, folder: str, name: str) -> Pieces:
        """See `Folder`."""
        with (self._path / folder / name).open("rb") as file:
            while piece := file.read(PIECE_NBYTES):
                yield piece

    def folders(self) -> list[str]:
        """See `Folder`."""
        try:
            return [entry.name for entry in self._path.iterdir() if entry.is_dir()]
        except FileNotFoundError:
            return []

    def remove(self, folder: str, first: str) -> None:
        """See `Folder`."""
        path = self._path / folder
        self._disk.unlink(path / first)
        if path.is_dir():
            self._disk.sync_folder(path)
        self._disk.remove(path)


class _LocalWriter:
    """Writes a file beside its place, has the disk hold it, moves it there, and has the disk hold that."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path, self._partial, self._disk = path, path.with_name(path.name + _PARTIAL), disk
        self._descriptor: int | None = disk.open(self._partial)

    def write(self, data: bytes) -> None:
        assert self._descriptor is not None
        view = memoryview(data)
        while view:
            written = self._disk.write(self._descriptor, view)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._partial))
            view = view[written:]

    def commit(self) -> None:
        assert self._descriptor is not None
        self._disk.sync(self._descriptor)
        self._close()
        self._disk.rename(self._partial, self._path)
        self._disk.sync_folder(self._path.parent)
        # The folder's own name may be as new as the file's.
        self._disk.sync_folder(self._path.parent.parent)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._close()
        with contextlib.suppress(OSError):
            self._disk.unlink(self._partial)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._disk.close(descriptor)


class RemoteFolder:
    """A folder of anything that fsspec reaches, such as an object store, where a file is there once it is closed.

    Args:
        url: such as ``s3://bucket/folder``.

    Raises:
        ConfigError: fsspec, or what it needs for this kind of address, is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            fsspec: Any = importlib.import_module("fsspec")
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            fix = "install ako-dataflow[remote] and the package that fsspec names for such addresses"
            raise ConfigError(what=f"cannot use this address: {error}", got=url, fix=fix) from error
        self._root, self.place = root.rstrip("/"), url

    def begin(self, folder: str, name: str) -> Writer:
        """See `Folder`."""
        with _as_os_error():
            self._files.makedirs(f"{self._root}/{folder}", exist_ok=True)
            return _RemoteWriter(self._files, f"{self._root}/{folder}/{name}")

    def read(self, folder: str, name: str) -> Pieces:
        """See `Folder`."""
        with _as_os_error(), self._files.open(f"{self._root}/{folder}/{name}", "rb") as file:
            while piece := file.read(PIECE_NBYTES):
                yield piece

    def folders(self) -> list[str]:
        """See `Folder`."""
        try:
            with _as_os_error():
                self._files.invalidate_cache()
                entries = self._files.ls(self._root, detail=True)
        except FileNotFoundError:
            return []
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory"]

    def remove(self, folder: str, first: str) -> None:
        """See `Folder`."""
        with _as_os_error():
            if self._files.exists(f"{self._root}/{folder}/{first}"):
                self._files.rm(f"{self._root}/{folder}/{first}")
            if self._files.exists(f"{self._root}/{folder}"):
                self._files.rm(f"{self._root}/{folder}", recursive=True)


class _RemoteWriter:
    def __init__(self, files: Any, path: str) -> None:
        self._files, self._path, self._partial = files, path, path + _PARTIAL
        # Some stores show what is half written, or keep it when this process dies: it has its name last, as on disks.
        self._file: Any = files.open(self._partial, "wb")

    def write(self, data: bytes) -> None:
        with _as_os_error():
            self._file.write(data)

    def commit(self) -> None:
        with _as_os_error():
            self._file.close()
            self._files.mv(self._partial, self._path)

    def discard(self) -> None:
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(Exception):
            self._files.rm(self._partial)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Stores raise errors of their own: to whoever keeps checkpoints they are all a disk that does not work."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


def open_folder(place: str) -> Folder:
    """The folder at a path, or at an address such as ``s3://bucket/folder``.

    Raises:
        ConfigError: the address cannot be used; see `RemoteFolder`.
    """
    if "://" in place:
        return RemoteFolder(place)
    return LocalFolder(expanded(place))
