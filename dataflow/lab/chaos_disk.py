"""A small disk that can be filled: a file system in memory, for a job's checkpoints."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from dataflow.lab.commands import run

_PIECE_NBYTES: Final = 1 << 16


class SmallDisk:
    """A disk.

    Args:
        path: where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leave no room on it."""
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(_PIECE_NBYTES))

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(megabytes: int) -> Iterator[SmallDisk]:
    """A disk of that size, gone when the ``with`` block ends.

    Raises:
        LabError: this process may not mount one.
    """
    with tempfile.TemporaryDirectory(prefix="ako-disk-") as path:
        run(("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "ako-disk", path))
        try:
            yield SmallDisk(Path(path))
        finally:
            run(("umount", "-l", path))
