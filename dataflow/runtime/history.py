"""A coordinator's events as text, so that what it decided can be decided again after the master was killed.

A coordinator decides by its events and their times alone. So the events are what is kept, before anything is done about
them; given to a fresh coordinator in the same order, they bring it to the same state, whatever that consists of.
"""

from __future__ import annotations

import json
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from dataflow.engine import coordination as co
from dataflow.errors import MasterError

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
