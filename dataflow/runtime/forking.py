"""What processes have in common whose forks are other programs: they have imported what those need, and start nothing.

Such a process has one thread and few descriptors, so its forks share no lock and no connection with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOM: Final = "." * 1024
"""A word of the command line of such a process: room for those of its forks."""


class Imported:
    """What this process has imported for its forks.

    Make it before anything is imported for them: collections are off from then on, which take an eighth of the time
    that imports do. Forks turn them on again.
    """

    def __init__(self) -> None:
        gc.disable()
        self._times = _file_times()
        self._is_warm = False

    def add(self, name: str) -> None:
        """Import a module; what is wrong with it is for the forks to find out and to say."""
        if name in sys.modules:
            return
        try:
            importlib.import_module(name)
        except BaseException as error:  # SystemExit, too, which would end this process
            print(f"not imported ahead: {name}: {error!r}", file=sys.stderr, flush=True)
        self._note()

    def warm_up(self) -> None:
        """Have numba compile something: only then it makes its tables, for 0.3 s."""
        if not self._is_warm and "numba" in sys.modules:
            self._is_warm = True
            sys.modules["numba"].njit(lambda number: number + 1)(1)
            self._note()

    def has_changed(self) -> bool:
        """Whether a file is another one than was imported."""
        return any(_time_ns(file) != time_ns for file, time_ns in self._times.items())

    def _note(self) -> None:
        """Note what has been imported, which forks share."""
        self._times |= _file_times(set(self._times))
        gc.collect()
        gc.freeze()  # so that collections in forks leave these pages shared


def become(words: Sequence[str], printed: int | None = None, *, as_it_is: bool = True) -> None:
    """Have this fork look and behave like a new process that was started with these words.

    Args:
        words: of its command line.
        printed: descriptor of what it prints to, which is closed; None: to what it prints already.
        as_it_is: or else it begins as a new program with the descriptors that are inheritable, and does not return.

    Raises:
        OSError: no new program can be started.
    """
    if printed is not None:
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        if printed > 2:
            os.close(printed)
    if not as_it_is:
        os.execv(sys.executable, list(words))
    gc.enable()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # or all forks would draw the same numbers
    _set_title(words)


def shared() -> int:
    """How much a fork of this process would lack or share: threads and open descriptors."""
    return sum(len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd"))


def _set_title(words: Sequence[str]) -> None:
    """Have the system show this as the command line of this process, as far as there is room."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"\0".join(os.fsencode(word) for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _file_times(known: Sequence[str] | set[str] = ()) -> dict[str, int]:
    """When the files of all imported modules were changed, in ns, but for those that are known."""
    files = {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    return {file: _time_ns(file) for file in files.difference(known)}


def _time_ns(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0
