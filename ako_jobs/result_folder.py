"""Folders that results are written to: new ones, or empty."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataflow.errors import ConfigError
from dataflow.home import expanded


def check_folder(path: str | Path) -> Path:
    """The folder, if it is empty or can be made; nothing is made yet.

    Raises:
        ConfigError: it holds something, or cannot be made or written to.
    """
    folder = expanded(path)
    try:
        used = folder.exists() and any(folder.iterdir())
        place = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise ConfigError(what=f"cannot write results there: {error}", got=str(path)) from error
    if used:
        raise ConfigError(what="the folder for the results is not empty", got=str(path), fix="name a new one")
    if not place.is_dir():
        raise ConfigError(what=f"cannot write results there: {place} is no folder", got=str(path))
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(what="cannot write results there: you may not write to the folder", got=str(path))
    return folder


def empty_folder(path: str | Path) -> Path:
    """The folder, made if it does not exist.

    Raises:
        ConfigError: it holds something, or cannot be made or written to.
    """
    folder = check_folder(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(what=f"cannot write results there: {error}", got=str(path)) from error
    return folder


@contextmanager
def held_folder(path: str | Path | None) -> Iterator[Path | None]:
    """The folder, made if it does not exist, and kept from other runs inside the ``with`` block; None if it is None.

    Raises:
        ConfigError: it holds something, cannot be made or written to, or another run is going to write to it.
    """
    if path is None:
        yield None
        return
    folder = empty_folder(path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # others than this one: of file systems that lock no folders
            if error.errno == errno.EWOULDBLOCK:
                what = "another run writes its results to the folder"
                raise ConfigError(what, got=str(path), fix="name another one") from error
        yield folder
    finally:
        os.close(descriptor)
