"""Wrong usage of a verb as one of our errors: one line that names what was received, and where to read on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from pydantic_core import ValidationError

from dataflow.errors import ConfigError, refusal

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What all wrong usage is; typer itself does not export it."""


def call(app: typer.Typer, given: Sequence[str]) -> int:
    """Call a verb with these arguments, and return its exit code.

    Raises:
        ConfigError: they are not what the verb takes.
    """
    try:
        code: object = app(args=list(given), prog_name="ako", standalone_mode=False)
    except _UsageError as error:
        return _refuse(error, verb=given[0])
    return code if isinstance(code, int) else 0


def _refuse(error: Any, verb: str) -> int:
    """Raise what is wrong; a group of verbs without one of them shows its help instead."""
    got = None
    if isinstance(error.__cause__, ValidationError):  # in releases of typer whose own words do not name the value
        details = error.__cause__.errors(include_url=False)[0]
        error.message, got = refusal(details), details["input"]
        if repr(got) in error.message:  # that of one of several choices does
            got = None
    what = error.format_message().rstrip(".")
    if "\n" in what:
        error.show()
        return int(error.exit_code)
    command = error.ctx.command_path if error.ctx else f"ako {verb}"
    raise ConfigError(what[:1].lower() + what[1:], got=got, fix=f"see `{command} --help`") from error
