"""What the verbs share: their options, clients of a master, settings, output."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

import dataflow
from dataflow.errors import ConfigError, printable
from dataflow.plain import plain
from dataflow.runtime.state_dir import DEFAULT_ADDRESS, default_state_dir, read_endpoint

if TYPE_CHECKING:
    from dataflow import Client

_GAP = 2

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="ako, parameter_server, all_to_all, sparse, tree, a file my_job.py, or module:function."
    ),
]
SettingsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings; `ako check JOB --settings` lists them.")
]
NodesOption = Annotated[int, typer.Option("--nodes", "-n", min=1, metavar="N", help="How many nodes the job runs on.")]
MasterOption = Annotated[
    str, typer.Option("--master", metavar="HOST:PORT", help="The master; that of --state-dir if left out.")
]
StateDirOption = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="The master's state directory; $AKO_STATE_DIR, or the user's own."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or its beginning.")]


def verbs() -> typer.Typer:
    """An empty group of verbs."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    # With a callback, a group of one verb is called by the verb's name like any other.
    app.callback()(_group)
    return app


def examples(*lines: str) -> str:
    """The end of a verb's help: lines to type, kept as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _group() -> None:
    """Nothing to do before a verb."""


def finite(value: float | None) -> float | None:
    """The number of an option or argument, which calls this back: in some releases of typer a range lets ``nan`` pass.

    Raises:
        typer.BadParameter: it is not finite.
    """
    if value is not None and not math.isfinite(value):
        message = f"{value} is not a finite number"
        raise typer.BadParameter(message)
    return value


def parse_settings(texts: Sequence[str] | None, form: str = "key=value, as in lr=0.1") -> dict[str, str]:
    """Settings by key, of words such as ``lr=0.1``.

    Args:
        texts: the words.
        form: how they are to be written, for people.

    Raises:
        ConfigError: a word is not of that form, or a key is given twice.
    """
    settings: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(what="not a setting", got=text, fix=f"write {form}")
        if key in settings:
            raise ConfigError(
                what=f"the setting {key!r} is given twice", got=[settings[key], value], fix="give it once"
            )
        settings[key] = value
    return settings


def connect(master: str, state_dir: Path | None) -> Client:
    """A client of the master at `master`, or of that of the state directory."""
    folder = state_dir or default_state_dir()
    address = master_address(master, folder)
    return dataflow.Client(address, *dataflow.find_credentials(address, folder))


def master_address(master: str, state_dir: Path) -> str:
    """The ``host:port`` given, else that of the master of `state_dir`, else the default.

    Raises:
        ConfigError: what is given is no ``host:port``.
    """
    if not master:
        return read_endpoint(state_dir) or DEFAULT_ADDRESS
    host, _, port = master.rpartition(":")
    bare = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not host or bare or not port.isdecimal() or not 0 < int(port) < 65536:
        fix = f"write host:port, as in {DEFAULT_ADDRESS} or [::1]:7461"
        raise ConfigError(what="not an address of a master", got=master, fix=fix)
    return master


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON on standard output; numbers that JSON does not know become null."""
    print(json.dumps(plain(value), indent=indent, allow_nan=False))


def print_line(value: Any) -> None:
    """Print a value as one line of JSON at once, for programs that read along."""
    print(json.dumps(plain(value), allow_nan=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on standard output; not wrapped unless a terminal shows it that is too narrow."""
    lines = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *lines, strict=True)]
    out = Console(markup=False, highlight=False, emoji=False)
    if out.is_terminal and sum(widths) + _GAP * (len(widths) - 1) > out.width:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for i, column in enumerate(columns):
            table.add_column(column, no_wrap=i == 0)  # an id that is cut short could not be copied
        for line in lines:
            table.add_row(*line)
        out.print(table)
        return
    # Not by a `Table`, which takes a millisecond for a line: a master may have thousands of jobs.
    head, *body = ((" " * _GAP).join(map(set_cell_size, line, widths)) for line in (columns, *lines))
    out.print(Text(head, style="bold"), soft_wrap=True)
    for text in body:
        print(text)


def note(text: str) -> None:
    """Tell the user something beside the result: on standard error."""
    print(text, file=sys.stderr)


def megabytes(nbytes: float) -> str:
    """A number of bytes in MB, for people."""
    return f"{nbytes / 1e6:,.1f} MB"


def seconds(duration_s: float) -> str:
    """A duration as ``1:02:03``, ``2:03``, ``4.50 s`` or ``0.321 ms``, for people: three digits where it is short."""
    if 0.0 < duration_s < 0.001:
        return f"{duration_s * 1000:#.3g} ms"
    if duration_s < 59.95:
        return f"{duration_s:#.3g} s"
    minutes, rest = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
