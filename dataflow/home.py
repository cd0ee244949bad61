"""Paths that begin with somebody's home, as the user writes them."""

from __future__ import annotations

from pathlib import Path

from dataflow.errors import ConfigError


def expanded(path: str | Path) -> Path:
    """The path, with the home directory that a ``~`` or ``~name`` at its beginning stands for.

    Raises:
        ConfigError: there is no such home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        what, fix = "nobody knows where that home directory is", "write the path from the root, or set HOME"
        raise ConfigError(what, got=str(path), fix=fix) from error
