"""Errors of the user's code: whatever an operator or a state element raises, with its name, node and line."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

from dataflow.errors import AkoError, OperatorError
from dataflow.operators_api import declared_at

_OTHERS = (
    "<",
    f"{Path(__file__).parents[1]}{os.sep}",
    *(f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""What the files of frames that are not the user's begin with."""


def blamed(error: Exception, what: str, cls: type, node: str) -> AkoError:
    """The error to report for one that user code raised.

    Args:
        error: what was raised; an `AkoError` that says where it happened is reported as it is.
        what: who raised it, as in ``operator 'blur'``.
        cls: the user's class.
        node: name of the node.
    """
    where = f"node {node}, {_raised_at(error) or declared_at(cls)}"
    if not isinstance(error, AkoError):
        return OperatorError(
            what=f"{what} raised {type(error).__name__}: {error}",
            where=where,
            fix="see the job's log for the traceback",
        )
    if error.where:
        return error
    return type(error)(f"{what}: {error.what}", got=error.got, where=where, fix=error.fix)


def _raised_at(error: Exception) -> str:
    """``file:line`` of the innermost frame in the user's own files; empty if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_OTHERS):
            return f"{frame.filename}:{frame.lineno}"
    return ""
