"""Errors of the user's code: whatever an operator or a state element raises, with its name, node and line."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path
from threading import current_thread, main_thread
from typing import NoReturn

from dataflow.errors import AkoError, OperatorError, ToldToEnd, in_words
from dataflow.operators_api import declared_at

_OTHERS = (
    "<",
    f"dataflow{os.sep}",  # so compiled modules call their files
    f"{Path(__file__).parents[1]}{os.sep}",
    *(f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""What the files of frames that are not the user's begin with."""


def reraise(error: BaseException, what: str, cls: type, node: str) -> NoReturn:
    """Raise what a user's error is reported as.

    Args:
        error: what user code raised; an `AkoError` that says where it happened is raised as it is, and so are Ctrl-C
            and what other signals raise, in the main thread only.
        what: whose code, as in ``operator 'blur'``.
        cls: the user's class.
        node: name of the node.

    Raises:
        AkoError: with operator or state element, node, and the user's line.
    """
    if isinstance(error, AkoError) and error.where:
        raise error
    if isinstance(error, KeyboardInterrupt | ToldToEnd) and current_thread() is main_thread():
        raise error
    where = f"node {node}, {raised_at(error) or declared_at(cls)}"
    if isinstance(error, AkoError):
        raise type(error)(what=f"{what}: {error.what}", got=error.got, where=where, fix=error.fix) from error
    raise OperatorError(
        what=f"{what} raised {named(error)}",
        where=where,
        fix="see the job's log for the traceback",
    ) from error


def named(error: BaseException) -> str:
    """An exception's class, and what it says, if anything."""
    said = in_words(error)
    return type(error).__name__ + (f": {said}" if said else "")


def raised_at(error: BaseException) -> str:
    """``file:line`` of the innermost frame in the user's own files; empty if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_OTHERS):
            return f"{frame.filename}:{frame.lineno}"
    return ""
