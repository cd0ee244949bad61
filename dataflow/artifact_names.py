"""Names of artifacts: one rule for operators that make them, masters that keep them and clients that write them."""

from __future__ import annotations

import re
from typing import Final

from dataflow.errors import WireError

NAME_RULE: Final = (
    "use a relative path of letters, digits, '._-' and '/'; its names, 8 at most of 128 characters, "
    "do not begin with '.'"
)
"""What to do about a name that is refused."""

RECORD_FOLDER: Final = "events"
"""Artifacts below this name make up the record of a run; those of operators are refused there."""

RECORD_FILE: Final = "record.json"
"""Holds, in a run's folder, what the run came to; see `dataflow.observe.record.make_record`."""

RUN_FILES: Final = frozenset({"config.json", "curves.csv", "job.log", RECORD_FILE})
"""What a client writes beside the artifacts; those of operators may not have these names."""


def is_artifact_name(name: str) -> bool:
    """Whether a name is a relative path of plain names."""
    parts = name.split("/")
    plain = all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", part) for part in parts)
    return plain and len(parts) <= 8


def check_artifact_name(name: str) -> None:
    """Refuse names of artifacts that are no relative path of plain names.

    Raises:
        WireError: the name is one of them.
    """
    if not is_artifact_name(name):
        raise WireError(what="an artifact has a bad name", got=name, fix=NAME_RULE)
