"""Messages: immutable values that operators exchange.

A message type is a frozen dataclass derived from `Message` whose fields are NumPy arrays or plain scalars, so that
every message has a size in bytes and can cross the wire without pickle. Once emitted, a message and its arrays are
never written again: sender, engine and transport may all hold it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

HEADER_NBYTES = 128
"""What a message costs besides its arrays and texts, in bytes, for credit: a generous bound on its header."""

SCALARS = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all messages. Fields of a subclass: `numpy.ndarray`, bool, int, float, str or None.

    A field that is declared to be a scalar holds no array: it would cost no credit.
    """


@dataclass(frozen=True, slots=True)
class Sharded(Message):
    """A message that is one part of a step's work; `Gather` operators merge the parts in shard order.

    Args:
        step: number of the step on the node that made it, from 0.
        shard: number of this part, from 0.
        shards: how many parts the step has.
    """

    step: int
    shard: int
    shards: int


@dataclass(frozen=True, slots=True)
class Tick(Sharded):
    """What a source is asked with: make shard `shard` of `shards` of step `step`."""


_FIELDS: dict[type, tuple[str, ...]] = {}
_ARRAYS: dict[type, tuple[str, ...]] = {}
_LONG: dict[type, tuple[str, ...]] = {}


def _declarations(kinds: Iterable[type]) -> frozenset[str]:
    return frozenset(name for kind in kinds for name in (kind.__name__, f"{kind.__name__} | None"))


_SCALAR, _SHORT = _declarations(SCALARS), _declarations(set(SCALARS) - {str})


def field_names(kind: type[Message]) -> tuple[str, ...]:
    """Names of a message type's fields, in order."""
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return names


def array_names(kind: type[Message]) -> tuple[str, ...]:
    """Names of the fields of a message type that may be arrays: those that are not declared to be scalars."""
    names = _ARRAYS.get(kind)
    if names is None:
        names = _ARRAYS[kind] = _declared_otherwise(kind, _SCALAR)
    return names


def nbytes(message: Message, tensor_scale: int = 1) -> int:
    """Size of a message in bytes as credit counts it.

    Its arrays, each `tensor_scale` times, a byte for each character of its texts, and `HEADER_NBYTES`.
    """
    kind, total, texts = type(message), 0, 0
    names = _LONG.get(kind)
    if names is None:
        names = _LONG[kind] = _declared_otherwise(kind, _SHORT)
    for name in names:
        value: Any = getattr(message, name)
        if isinstance(value, np.ndarray):
            total += value.nbytes
        elif isinstance(value, str):
            texts += len(value)
    return total * tensor_scale + texts + HEADER_NBYTES


def _declared_otherwise(kind: type[Message], declarations: frozenset[str]) -> tuple[str, ...]:
    """Names of the fields of a message type that are not declared to be one of these."""
    declared = {field.name: getattr(field.type, "__name__", field.type) for field in dataclasses.fields(kind)}
    return tuple(name for name, type_ in declared.items() if type_ not in declarations)
