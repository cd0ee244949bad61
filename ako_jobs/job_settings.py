"""The settings of a job as a table: key, type, default and meaning, read off its configuration class."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ako_jobs.setting_values import listed


@dataclass(frozen=True)
class JobSetting:
    """A setting: its `key`, the values it takes, its default (None if it must be given) and what it means."""

    key: str
    values: str
    default: Any
    required: bool
    meaning: str


def job_settings(config: type[BaseModel]) -> tuple[JobSetting, ...]:
    """Every setting of a configuration class, in order; meanings come from the ``Args`` of its docstrings."""
    meanings: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            meanings.update(_meanings(inspect.cleandoc(base.__doc__ or "")))
    return tuple(
        JobSetting(
            key=key,
            values=listed(field),
            default=None if field.get_default() is PydanticUndefined else field.get_default(),
            required=field.is_required(),
            meaning=meanings.get(key, field.description or ""),
        )
        for key, field in config.model_fields.items()
    )


def _meanings(docstring: str) -> dict[str, str]:
    """Texts of the ``Args`` section by name."""
    found: dict[str, str] = {}
    names: list[str] = []
    section = re.search(r"^Args:\n((?:[ ]{4}.*(?:\n|$)|\n)+)", docstring, re.MULTILINE)
    for line in section[1].splitlines() if section else []:
        if start := re.match(r" {4}(\w+(?:, \w+)*): (.*)", line):
            names = start[1].split(", ")
            found.update(dict.fromkeys(names, start[2]))
        elif line.strip():
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
    return found
