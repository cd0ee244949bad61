"""Errors a user meets: what is wrong, the value received, where, and what to do.

Every error derives from `AkoError` and carries the exit code that the `ako` command ends with:
2 for bad input, or what this machine cannot do (nothing was started), 1 for a job that failed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic_core import ErrorDetails, ValidationError


class AkoError(Exception):
    """Base of all errors of this project.

    Args:
        what: what is wrong, one sentence without the final full stop.
        got: the value received, or words about it; shortened, and in quotes only where that makes it clearer.
        where: node, operator, or the user's ``file:line``.
        fix: what the user can do about it.
    """

    exit_code = 2

    def __init__(self, what: str, *, got: object = None, where: str = "", fix: str = "") -> None:
        self.what, self.got, self.where, self.fix = what, got, where, fix
        text = what
        if got is not None:
            text += f" (got {_short(got)})"
        if where:
            text += f" at {where}"
        if fix:
            text += f"; {fix}"
        super().__init__(text)


class ToldToEnd(SystemExit):
    """This process has been told to end by a signal: nothing that whatever it was doing then has done."""


class DataError(AkoError):
    """A data file is missing, truncated, or not what its name says."""


class ConfigError(AkoError):
    """A job's configuration is wrong: unknown key, bad type, impossible combination."""


class GraphError(AkoError):
    """A logical graph fails its checks."""


class PlanError(AkoError):
    """A graph cannot be placed on the nodes given."""


class OperatorError(AkoError):
    """An operator is declared wrongly, or raised while running (then the job fails)."""

    exit_code = 1


class BeginAnewError(OperatorError):
    """A node cannot go on with what it has: its job process ends, and is started again like one that has died."""


class WireError(AkoError):
    """A frame, handshake or control message breaks the protocol."""

    exit_code = 1


class AuthError(AkoError):
    """The token is missing or wrong."""


class BundleError(AkoError):
    """A code bundle breaks its limits: a path outside the bundle, too many or too large files."""


class MasterError(AkoError):
    """The master cannot be reached, or refused the request."""


class CheckpointError(AkoError):
    """A checkpoint is broken, or does not fit the job that is to go on from it."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint cannot be read here and now, and may well be whole."""


class LabError(AkoError):
    """An emulated cluster cannot be made on this machine, or none is up."""


class JobFailedError(AkoError):
    """A job ended as FAILED."""

    exit_code = 1


class DrainError(AkoError):
    """A node died before it had left its jobs, or one of these failed."""

    exit_code = 1


def suggest(name: str, known: Iterable[str]) -> str:
    """One sentence that offers the nearest known name, or lists them all.

    Args:
        name: what the user wrote.
        known: the names that would have been accepted.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    listed = ", ".join(names)
    return f"did you mean {near[0]!r}? known: {listed}" if near else f"known: {listed}"


def one_line(text: str, limit: int = 300) -> str:
    """A text that others have written, such as an exception's, as one line of at most `limit` printable characters."""
    return _cut(printable(" ".join(text[: 100 * limit].split())), limit)


def printable(text: str) -> str:
    """A text in which what a terminal would not print but obey is written as in Python."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def in_words(error: BaseException) -> str:
    """What an exception says, as one line; of pydantic's, what the first value that it refuses must be."""
    if not isinstance(error, ValidationError):
        try:
            return one_line(str(error))
        except Exception:
            return "(its __str__ raises)"
    first = error.errors(include_url=False)[0]
    place = ".".join((error.title, *map(str, first["loc"])))
    got = f" (got {_short(first['input'])})" if first["loc"] and first["type"] != "missing" else ""
    return one_line(f"{place}: {refusal(first)}") + got


def refusal(error: ErrorDetails) -> str:
    """What a value must be that pydantic refuses, or what the validator that refuses it says."""
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message.replace("Input should be", "must be")


def _short(value: object, limit: int = 200) -> str:
    plain = isinstance(value, str) and value.strip() == value and value.isprintable() and bool(value)
    if isinstance(value, str):
        return _cut(value if plain else repr(value), limit)
    return one_line(repr(value), limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
