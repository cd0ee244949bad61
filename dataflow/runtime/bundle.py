"""Code bundles: the Python files of a job, as one archive named by the hash of its contents.

A bundle is made by the client, stored by the master unopened, and unpacked only by job processes.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dataflow.errors import BundleError

MAX_FILES = 500
"""Most files in a bundle."""

MAX_NBYTES = 16 << 20
"""Most bytes of all files of a bundle together, unpacked; and of its archive."""

_MOMENT = (1980, 1, 1, 0, 0, 0)
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A job's code.

    Args:
        digest: SHA-256, in hex, over the sorted names and contents of its files.
        data: the zip archive.
    """

    digest: str
    data: bytes


def make_bundle(folder: Path, include: Iterable[str] = ()) -> Bundle:
    """Pack the ``*.py`` files that lie directly in `folder`, and what `include` names.

    Args:
        folder: the folder of the job file; file names in the bundle are relative to it.
        include: relative paths of further files, or of folders taken with everything below them except caches.

    Raises:
        BundleError: a path does not exist, leads out of `folder`, or the limits are exceeded.
    """
    root = folder.resolve()
    if not root.is_dir():
        raise BundleError(what="the bundle's folder does not exist", got=str(folder))
    paths = {path for path in root.glob("*.py") if path.is_file()}
    for name in include:
        paths |= _included(root, name)
    files: dict[str, bytes] = {}
    total = 0
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        if not path.resolve().is_relative_to(root):
            raise BundleError(what="a link leads out of the job's folder", got=name, fix="copy the file there")
        total += path.stat().st_size
        _check_limits(len(files) + 1, total)
        files[name] = path.read_bytes()
    return Bundle(_digest(files), _pack(files))


def unpack(bundle: Bundle, into: Path) -> None:
    """Write a bundle's files below `into`, an existing folder; nothing is written unless all is well.

    Raises:
        BundleError: a name leads out of `into`, a member is no plain file, the limits are exceeded, or the contents
            do not have the bundle's digest.
    """
    if len(bundle.data) > MAX_NBYTES:
        raise BundleError(what=f"a bundle's archive may have {MAX_NBYTES} bytes", got=len(bundle.data))
    try:
        with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
            files = _read(archive)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise BundleError(what=f"the bundle is no readable archive: {error}") from error
    digest = _digest(files)
    if digest != bundle.digest:
        raise BundleError(what=f"the bundle's contents hash to {digest}", got=bundle.digest, fix="send it again")
    for name, data in files.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _included(root: Path, name: str) -> set[Path]:
    _check_name(name)
    path = root / name
    if path.is_dir():
        found = {below for below in path.rglob("*") if below.is_file() and "__pycache__" not in below.parts}
    elif path.is_file():
        found = {path}
    else:
        raise BundleError(what="a file to include does not exist", got=name, where=str(root))
    return found


def _read(archive: zipfile.ZipFile) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for member in archive.infolist():
        _check_name(member.filename)
        kind = (member.external_attr >> 16) & 0o170000
        if member.is_dir() or kind not in (0, 0o100000):
            raise BundleError(what="a bundle holds plain files only", got=member.filename)
        if member.compress_type not in _COMPRESSIONS:  # others may demand any memory of whoever unpacks them
            raise BundleError(what="a bundle's files are stored or deflated", got=f"method {member.compress_type}")
        if member.filename in files:
            raise BundleError(what="a bundle holds every file once", got=member.filename)
        # The size in the directory is the sender's word: read one byte more than is allowed, never all.
        with archive.open(member) as stream:
            data = stream.read(MAX_NBYTES - total + 1)
        total += len(data)
        _check_limits(len(files) + 1, total)
        files[member.filename] = data
    return files


def _check_name(name: str) -> None:
    pure = PurePosixPath(name)
    plain = name and "\\" not in name and "\0" not in name and ":" not in name
    if not plain or pure.is_absolute() or ".." in pure.parts:
        raise BundleError(what="a file name leads out of the bundle", got=name, fix="use relative paths without '..'")


def _check_limits(files: int, nbytes: int) -> None:
    if files > MAX_FILES:
        raise BundleError(what=f"a bundle may hold {MAX_FILES} files", got=files, fix="put the job in its own folder")
    if nbytes > MAX_NBYTES:
        raise BundleError(
            what=f"a bundle's files may have {MAX_NBYTES} bytes", got=nbytes, fix="keep data out of the job's folder"
        )


def _digest(files: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(files[name]).digest())
    return whole.hexdigest()


def _pack(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, _MOMENT)
            member.external_attr = 0o100644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, files[name])
    return buffer.getvalue()
