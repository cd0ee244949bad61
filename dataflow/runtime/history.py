"""A coordinator's events as text, so that what it decided can be decided again after the master was killed.

A coordinator decides by its events and their times alone. So the events are what is kept, before anything is done about
them; given to a fresh coordinator in the same order, they bring it to the same state, whatever that consists of.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, get_args

from pydantic import TypeAdapter, ValidationError

from dataflow.engine import coordination as co
from dataflow.errors import MasterError

_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")

_KINDS: dict[str, TypeAdapter[co.Event]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(co.Event)}


def event_to_text(event: co.Event) -> str:
    """An event as JSON text: the name of its class, and its fields."""
    kind = type(event).__name__
    return json.dumps([kind, _KINDS[kind].dump_python(event, mode="json")])


def event_from_text(text: str) -> co.Event:
    """The event of what `event_to_text` made.

    Raises:
        MasterError: it is none of this version of the program.
    """
    try:
        kind, fields = json.loads(text)
        return _KINDS[kind].validate_python(fields)
    except (ValueError, KeyError, ValidationError) as error:
        what = "the master's database holds an event that this program does not know"
        raise MasterError(what, got=text, fix="run the version that wrote it until the jobs have ended") from error


@cache
def this_boot() -> str:
    """What names the present start of this machine, since which the clock goes on; empty where nothing does."""
    try:
        return _BOOT_FILE.read_text().strip()
    except OSError:
        return ""


def on_this_clock(times: Sequence[tuple[float, float, str]], now_s: float, wall_s: float, boot: str) -> list[float]:
    """When events happened, on a clock that shows `now_s`, and has begun anew with every start of the machine.

    Between events of different starts the wall clock counts, and there alone: somebody may set it at any time.

    Args:
        times: of the events, in order: seconds on the clock as it went then, and since 1970-01-01 UTC; and which start
            of the machine it was.
        now_s: what the clock shows.
        wall_s: what the wall clock shows.
        boot: which start of the machine it is.
    """
    later, shift_s, found = (now_s, wall_s, boot), 0.0, list[float]()
    for earlier in reversed(times):
        since_s, passed_s = later[0] - earlier[0], max(0.0, later[1] - earlier[1])
        if since_s < 0 or later[2] != earlier[2]:
            shift_s += since_s - passed_s
        later = earlier
        found.append(earlier[0] + shift_s)
    return found[::-1]
