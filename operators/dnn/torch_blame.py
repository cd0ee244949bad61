"""What the code of a user's module raises, as errors that say where that was and what to do."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from dataflow.errors import AkoError, ConfigError, in_words
from dataflow.operators_api import declared_at

_OTHERS = (
    "<",
    f"{Path(__file__).parents[1]}{os.sep}",
    f"{Path(torch.__file__).parent}{os.sep}",
    *(f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""What the files of frames that are not the user's begin with."""


@contextmanager
def blamed(what: str, function: Callable[..., Any], fix: str) -> Iterator[None]:
    """Run code of the user's.

    Args:
        what: it is, as in ``the loss my_job:smoothed``.
        function: which it has come by.
        fix: what to do if it raises.

    Raises:
        ConfigError: it raises, with the user's innermost line, or that of `function`; errors of ours, and that there is
            no more memory, stay as they are.
    """
    try:
        yield
    except (AkoError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = in_words(error)
        text = f"{what} raised {type(error).__name__}" + (f": {said}" if said else "")
        raise ConfigError(text, where=_raised_at(error) or made_at(function), fix=fix) from error


def made_at(function: Callable[..., Any]) -> str:
    """``file:line`` of a function or class; empty if it is neither."""
    return declared_at(cast("type", function)) if hasattr(function, "__qualname__") else ""


def _raised_at(error: Exception) -> str:
    """``file:line`` of the innermost frame in the user's own files; empty if there is none."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((f"{each.filename}:{each.lineno}" for each in frames if not each.filename.startswith(_OTHERS)), "")
