"""The checkpoints of one job in a folder: written file by file, whole once the manifest is there, the last few kept.

Invariant: at any moment, and after being killed at any moment, every checkpoint that has a manifest has all its files,
unless somebody else has changed them; `verify` tells. Not for several threads at once.
"""

from __future__ import annotations

import errno
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from dataflow.engine.checkpoints import KeptFile, Manifest, describe, header_nbytes
from dataflow.errors import CheckpointError, UnreadableCheckpointError
from dataflow.runtime.folders import Folder, Pieces, Writer

MANIFEST = "manifest.json"

_JOB = re.compile("[0-9a-f]{12}")
"""Name of a job's folder: its id."""

_BEGUN = 4
"""Checkpoints at most that have begun and are not whole."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class _Writing:
    """A file that is being written: how much, its digest, and its beginning up to its header's end."""

    writer: Writer
    number: int
    begin: bytearray = field(default_factory=bytearray)
    nbytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


class CheckpointStore:
    """The checkpoints of a job.

    Args:
        folder: where they are; nobody else writes there.
        keep: how many whole ones are kept, as long as there is space for one more.
        manifest: makes the manifest of a checkpoint from its number and its files.
        nodes: without whose files a checkpoint is not whole.
        needed: those of them without which none is whole even if they have left: they hold parts of a whole.
        inherited: names of nodes whose parts others have, in no file, once these have died or left.
        vacant: those of them that are not there at the start: what they make, should they come, is lost to a job that
            goes on without them.
        warn: told of every failure, once until there is a whole checkpoint again.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        keep: int,
        manifest: Callable[[int, tuple[KeptFile, ...]], Manifest],
        nodes: frozenset[int],
        needed: frozenset[int] = frozenset(),
        inherited: Mapping[int, str] | None = None,
        vacant: frozenset[int] = frozenset(),
        warn: Callable[[str], None],
    ) -> None:
        self._folder, self._keep, self._manifest, self._warn = folder, keep, manifest, warn
        self._since, self._needed = dict.fromkeys(nodes, -1), needed
        self._inherited, self._vacant, self._gone = inherited or {}, vacant, set[int]()
        self._writing: dict[int, _Writing] = {}
        self._files: dict[int, dict[int, KeptFile]] = {}
        self._failed: set[int] = set()
        self._newest = next((number for number in numbers(folder) if _is_whole(folder, number)), -1)
        self._warned: set[tuple[str, int | None]] = set()

    def write(self, node: int, number: int, data: bytes, *, last: bool) -> None:
        """Take the next bytes of a node's file of a checkpoint; a node sends one file after the other."""
        if node in self._since:
            self._since[node] = min(self._since[node], number)
        if self._is_hopeless(number):
            return
        self._limit(number)
        if number <= self._newest or number in self._failed:
            return
        try:
            writing = self._writing.get(node)
            if writing is None or writing.number != number:
                self._drop(node)
                writing = self._writing[node] = _Writing(self._folder.begin(_name(number), _file(node)), number)
            writing.writer.write(data)
            _note(writing, data)
            if last:
                self._complete(node, writing)
        except (OSError, CheckpointError) as error:
            self._fail(number, error)

    def leave(self, node: int) -> None:
        """Expect nothing of a node any more, unless it is needed; checkpoints that lacked only that become whole."""
        if node not in self._needed:
            self._since.pop(node, None)
        self._drop(node)
        for number in sorted(self._files):
            try:
                self._finish(number)
            except OSError as error:
                self._fail(number, error)
        if node in self._inherited and node not in self._gone | self._vacant:
            self._gone.add(node)
            self._give_up(f"node {self._inherited[node]} is gone, and others have what it held, but no file")

    def join(self, node: int) -> None:
        """Expect files of a node from the first on that it sends: until it has caught up it makes none."""
        self._since.setdefault(node, sys.maxsize)
        if node in self._vacant and node not in self._gone:
            self._gone.add(node)
            self._give_up(f"node {self._inherited[node]} has come, and a job that goes on from one begins without it")

    def expected(self, number: int) -> frozenset[int]:
        """The nodes without whose files a checkpoint is not whole."""
        return frozenset(node for node, first in self._since.items() if first <= number)

    def close(self) -> None:
        """Leave nothing behind that is not whole."""
        for node in list(self._writing):
            self._drop(node)
        for number in set(self._files) | self._failed:
            self._clear(number)

    def _limit(self, number: int) -> None:
        """Give up the oldest of too many checkpoints that are not whole: some node does not send its part."""
        begun = sorted(self._files.keys() | {writing.number for writing in self._writing.values()} | {number})
        if len(begun) > _BEGUN:
            expected = self.expected(begun[0])
            missing = expected - self._files.get(begun[0], {}).keys()
            lacking = ", ".join(map(str, sorted(missing)))
            error = CheckpointError(f"nodes have not sent their parts while others went on: {lacking}")
            if missing == expected:
                what = f"no node had sent its part of it when {_BEGUN} later ones had begun"
                error = CheckpointError(what, fix="have them made more rarely, by a larger checkpoint_every")
            self._fail(begun[0], error)

    def _is_hopeless(self, number: int) -> bool:
        """Whether a checkpoint lacks what a node held that never comes back."""
        return not self._gone <= self._files.get(number, {}).keys()

    def _give_up(self, why: str) -> None:
        """Keep no more checkpoints, but for those that need nothing more of the nodes that are gone."""
        for node in [node for node, writing in self._writing.items() if self._is_hopeless(writing.number)]:
            self._failed.add(self._writing[node].number)
            self._drop(node)
        self._failed |= {number for number in self._files if self._is_hopeless(number)}
        self._files = {number: files for number, files in self._files.items() if number not in self._failed}
        for number in self._failed:
            self._clear(number)
        what = f"no more checkpoints are kept in {self._folder.place}: {why}"
        fix = f"cancel it, and ako resume goes on from checkpoint {self._newest}" if self._newest >= 0 else "begin anew"
        self._warn(f"{what}; the job goes on. To have more, {fix}")

    def _complete(self, node: int, writing: _Writing) -> None:
        """Give a file its name, and finish its checkpoint if that is whole now."""
        file = describe(bytes(writing.begin), _file(node), writing.nbytes, writing.digest.hexdigest())
        if file.member.node != node:
            raise CheckpointError(what=f"node {node} has sent a file of node {file.member.node}", where=file.file)
        writing.writer.commit()
        del self._writing[node]
        self._files.setdefault(writing.number, {})[node] = file
        self._finish(writing.number)

    def _finish(self, number: int) -> None:
        """Write the manifest if all files are there."""
        files, expected = self._files.get(number, {}), self.expected(number)
        if number <= self._newest or not expected or not expected <= files.keys():
            return
        kept = tuple(files[node] for node in sorted(files))
        manifest = self._manifest(number, kept)
        if not manifest.roles.keys() <= {role for file in kept for role in file.member.roles}:
            return  # all that are left of some role have yet to send theirs
        writer = self._folder.begin(_name(number), MANIFEST)
        try:
            writer.write(manifest.encode())
            writer.commit()
        except OSError:
            writer.discard()
            raise
        self._newest = number
        self._warned.clear()
        self._prune()

    def _prune(self) -> None:
        """Keep the newest whole ones, and remove what is older and what will never be whole."""
        whole = self._whole()
        older = {number for number in numbers(self._folder) if number < self._newest}
        gone = set(whole[self._keep :]) | (older - set(whole))
        for number in sorted(gone):
            self._clear(number)
        for node in [node for node, writing in self._writing.items() if writing.number <= self._newest]:
            self._drop(node)
        self._files = {number: files for number, files in self._files.items() if number > self._newest}
        self._failed = {number for number in self._failed if number > self._newest}

    def _whole(self) -> list[int]:
        return [number for number in numbers(self._folder) if _is_whole(self._folder, number)]

    def _fail(self, number: int, error: Exception) -> None:
        """Give a checkpoint up, and say so; where there is no space, keep fewer from now on: one more has to fit."""
        self._failed.add(number)
        for node in [node for node, writing in self._writing.items() if writing.number == number]:
            self._drop(node)
        self._files.pop(number, None)
        self._clear(number)
        made = ""
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            whole = len(self._whole())
            if whole > 1:
                self._keep = whole - 1
                self._prune()
                made = f"; from now on it keeps {self._keep} instead of {whole} that are whole, to make room"
        kind = (type(error).__name__, getattr(error, "errno", None))
        if kind not in self._warned:
            self._warned.add(kind)
            place = self._folder.place
            self._warn(f"checkpoint {number} cannot be kept in {place}: {error}; the job goes on without it{made}")

    def _clear(self, number: int) -> None:
        try:
            self._folder.remove(_name(number), MANIFEST)
        except OSError:
            return  # it is not whole, or stays beside those that are kept: neither does harm

    def _drop(self, node: int) -> None:
        writing = self._writing.pop(node, None)
        if writing is not None:
            writing.writer.discard()


def numbers(folder: Folder) -> list[int]:
    """Numbers of the checkpoints in a folder, whole or not, newest first; none if it cannot be read."""
    try:
        return _numbers(folder)
    except OSError:
        return []


def _numbers(folder: Folder) -> list[int]:
    return sorted((int(name) for name in folder.folders() if name.isdecimal()), reverse=True)


def load_manifest(folder: Folder, number: int) -> Manifest:
    """The manifest of a checkpoint.

    Raises:
        CheckpointError: it has none, or none that can be used.
    """
    where = f"{folder.place}/{_name(number)}/{MANIFEST}"
    try:
        return Manifest.decode(b"".join(folder.read(_name(number), MANIFEST)))
    except FileNotFoundError as error:
        raise CheckpointError(what="the checkpoint is not whole: it has no manifest", where=where) from error
    except OSError as error:
        raise UnreadableCheckpointError(what=f"the checkpoint cannot be read: {error}", where=where) from error
    except CheckpointError as error:
        raise type(error)(error.what, where=where, fix=error.fix) from error


def verify(folder: Folder, number: int) -> Manifest:
    """The manifest of a checkpoint all of whose files are what was written.

    Raises:
        CheckpointError: one of them is not, or there is none; the error names it.
    """
    manifest = load_manifest(folder, number)
    for file in manifest.files:
        for _ in contents(folder, number, file):
            pass
    return manifest


@dataclass(frozen=True, slots=True)
class Search:
    """What was found in a folder of checkpoints, from the newest on to the first whole one.

    Attributes:
        manifest: the newest whole one's; None if there is none.
        left_out: what is wrong with those that are newer, by number.
        unlisted: why it cannot be listed which there are; None if it can.
    """

    manifest: Manifest | None
    left_out: Mapping[int, CheckpointError]
    unlisted: OSError | None = None

    @property
    def unsure(self) -> bool:
        """Whether something could not be read: a later search may find more."""
        unreadable = (isinstance(error, UnreadableCheckpointError) for error in self.left_out.values())
        return self.unlisted is not None or any(unreadable)

    @property
    def warnings(self) -> list[str]:
        """What was left out and why, for people."""
        unlisted = [] if self.unlisted is None else [f"the folder cannot be read: {self.unlisted}"]
        return [*unlisted, *(f"checkpoint {number} is left out: {error}" for number, error in self.left_out.items())]


def search(folder: Folder, number: int | None = None, *, beyond_unreadable: bool = True) -> Search:
    """Find the newest checkpoint that can be used.

    Args:
        folder: where checkpoints are.
        number: the one that it must be; any if None.
        beyond_unreadable: whether to look at ones that are older than one that cannot be read.
    """
    left_out: dict[int, CheckpointError] = {}
    try:
        found = _numbers(folder) if number is None else [number]
    except OSError as error:
        return Search(None, {}, error)
    for each in found:
        try:
            return Search(verify(folder, each), left_out)
        except CheckpointError as error:
            left_out[each] = error
            if isinstance(error, UnreadableCheckpointError) and not beyond_unreadable:
                break
    return Search(None, left_out)


def newest_whole(folder: Folder, number: int | None = None) -> tuple[Manifest, list[str]]:
    """The newest checkpoint that can be used, and what is wrong with the newer ones.

    Args:
        folder: where checkpoints are.
        number: the one that it must be; any if None.

    Raises:
        CheckpointError: there is none.
    """
    found = search(folder, number)
    if found.manifest is not None:
        return found.manifest, found.warnings
    raise none_whole(folder, found, number)


def none_whole(folder: Folder, found: Search, number: int | None = None) -> CheckpointError:
    """What to tell people after a search in vain, also for the checkpoint of one number."""
    fix = "see checkpoint_every"
    if found.unsure:
        fix = "once it can be read, ako resume goes on from it; before that, from an older one, if there is one"
    elif number is not None and (whole := ", ".join(map(str, _whole(folder)))):
        fix = f"name one that is whole: {whole}"
    elif number is None and (jobs := _jobs(folder)):
        fix = f"name the folder of a job in it, such as {jobs[0]}"
    if number is None:
        what = "; ".join(["there is no whole checkpoint", *found.warnings])
        return CheckpointError(what, where=folder.place, fix=fix)
    if found.unsure or number in numbers(folder):
        return CheckpointError(f"checkpoint {number} cannot be used: {found.left_out[number]}", fix=fix)
    return CheckpointError(f"there is no checkpoint {number}", where=folder.place, fix=fix)


def _jobs(folder: Folder) -> list[str]:
    """Ids of jobs that have folders in this one."""
    try:
        return sorted(name for name in folder.folders() if _JOB.fullmatch(name))
    except OSError:
        return []


def _whole(folder: Folder) -> list[int]:
    """Numbers of the checkpoints all of whose files are what was written, newest first."""
    found = []
    for number in numbers(folder):
        with suppress(CheckpointError):
            found.append(verify(folder, number).number)
    return found


def remove(folder: Folder, checkpoints: Iterable[int]) -> None:
    """Remove checkpoints, as far as that goes."""
    for number in checkpoints:
        with suppress(OSError):
            folder.remove(_name(number), MANIFEST)


def contents(folder: Folder, number: int, file: KeptFile) -> Pieces:
    """A file of a checkpoint, in pieces, of which the last comes only if together they are what was written.

    Raises:
        CheckpointError: they are not, or cannot be read; the error names the file.
    """
    where = f"{folder.place}/{_name(number)}/{file.file}"
    try:
        with closing(folder.read(_name(number), file.file)) as pieces:
            yield from file.checked(pieces)
    except FileNotFoundError as error:
        raise CheckpointError(what="the checkpoint is not whole: a file is missing", where=where) from error
    except OSError as error:
        raise UnreadableCheckpointError(what=f"a file cannot be read: {error}", where=where) from error
    except CheckpointError as error:
        raise CheckpointError(error.what, where=where) from error


def _is_whole(folder: Folder, number: int) -> bool:
    try:
        load_manifest(folder, number)
    except CheckpointError:
        return False
    return True


def _note(writing: _Writing, data: bytes) -> None:
    writing.nbytes += len(data)
    writing.digest.update(data)
    if len(writing.begin) < 8 or len(writing.begin) < header_nbytes(bytes(writing.begin[:8])):
        writing.begin += data


def _name(number: int) -> str:
    return f"{number:09d}"


def _file(node: int) -> str:
    return f"node-{node}.safetensors"
