"""Folders for what a process needs while it runs: gone with it, or if it was killed, once the next of its kind starts.

Invariant: a folder whose process lives is locked, and only the process itself removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

KEPT: Final = "kept"
"""A file of this name has a folder stay whose process is gone."""


class Scratch:
    """A folder of this process in the system's folder for temporary files; readable by its owner only.

    To make one removes what killed processes of the same user have left of this kind.

    Args:
        kind: what it is for; part of its name.
    """

    def __init__(self, kind: str) -> None:
        self._prefix = f"ako-{kind}-"
        self._held: tuple[Path, int] | None = None
        with suppress(OSError):  # no folder for temporary files: that is told when one is needed
            for left in Path(tempfile.gettempdir()).glob(f"{self._prefix}*"):
                _remove_unless_held(left)

    @property
    def path(self) -> Path:
        """The folder; it is made when it is first asked for, and again if somebody has removed it.

        Raises:
            OSError: it cannot be made.
        """
        if self._held is not None and not self._held[0].is_dir():
            self._release()
        while self._held is None:
            path = Path(tempfile.mkdtemp(prefix=self._prefix))
            # Before it is locked another process may take it for one that was left.
            with suppress(FileNotFoundError):
                lock = _lock(path, fcntl.LOCK_EX)
                if path.is_dir():
                    self._held = path, lock
                else:
                    os.close(lock)
        return self._held[0]

    def keep(self) -> None:
        """Let go of the folder, and have it stay for whoever wants to look into it."""
        if self._held is not None:
            with suppress(OSError):
                (self._held[0] / KEPT).touch()
            self._release()

    def close(self) -> None:
        """Remove the folder, if it was made."""
        if self._held is not None:
            shutil.rmtree(self._held[0], ignore_errors=True)
            self._release()

    def _release(self) -> None:
        if self._held is not None:
            os.close(self._held[1])
        self._held = None


def _remove_unless_held(path: Path) -> None:
    try:
        lock = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its process lives, or it is another user's, or gone already
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid() and not (path / KEPT).exists():
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _lock(path: Path, how: int) -> int:
    """A descriptor of a folder, which is locked as long as it is open.

    Raises:
        OSError: there is no such folder, or it cannot be locked.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, how)
    except OSError:
        os.close(folder)
        raise
    return folder
