"""What values a setting takes, in a user's words, read off the annotation of its field."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union

from pydantic.fields import FieldInfo

_PLAIN = {
    int: ("integer", "an integer"),
    float: ("number", "a number"),
    str: ("text", "text"),
    bool: ("true | false", "true or false"),
}
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


@dataclass(frozen=True)
class Alternative:
    """One kind of value that a setting takes.

    Args:
        kind: its type; for a literal, the literal.
        literal: whether only this very value is meant.
        bounds: such as ``> 0``, lower before upper.
    """

    kind: Any
    literal: bool = False
    bounds: tuple[str, ...] = ()


def alternatives(field: FieldInfo) -> tuple[Alternative, ...]:
    """The kinds of values that a field takes, but for None, which stands for a setting left out."""
    return tuple(_alternatives(field.annotation, _bounds(field.metadata)))


def listed(field: FieldInfo) -> str:
    """The values for a table, such as ``integer | auto``."""
    return " | ".join(_plain(each)[0] for each in alternatives(field))


def required(field: FieldInfo) -> str:
    """The values for a sentence, such as ``a positive integer or auto``; empty if words fail."""
    kinds = alternatives(field)
    if not all(each.literal or each.kind in _PLAIN for each in kinds):
        return ""
    *others, last = [_bounded(each) for each in kinds]
    return f"{', '.join(others)} or {last}" if others else last


def literals(field: FieldInfo) -> tuple[str, ...]:
    """The values that are meant literally."""
    return tuple(str(each.kind) for each in alternatives(field) if each.literal)


def _alternatives(annotation: Any, bounds: tuple[str, ...]) -> Iterator[Alternative]:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        yield from _alternatives(parts[0], (*bounds, *_bounds(parts[1:])))
    elif origin in (Union, UnionType):
        for part in parts:
            yield from _alternatives(part, bounds)
    elif origin is Literal:
        yield from (Alternative(value, literal=True) for value in parts)
    elif annotation is not NoneType:
        yield Alternative(annotation, bounds=bounds)


def _bounds(metadata: Iterable[Any]) -> tuple[str, ...]:
    known = [inner for each in metadata for inner in (each.metadata if isinstance(each, FieldInfo) else (each,))]
    return tuple(
        f"{sign} {getattr(each, name)}" for name, sign in _SIGNS.items() for each in known if hasattr(each, name)
    )


def _plain(alternative: Alternative) -> tuple[str, str]:
    """Words for a table and for a sentence."""
    kind = alternative.kind
    if alternative.literal or kind not in _PLAIN:
        name = str(kind if alternative.literal else getattr(kind, "__name__", kind))
        return name, name
    return _PLAIN[kind]


def _bounded(alternative: Alternative) -> str:
    words, bounds = _plain(alternative)[1], alternative.bounds
    if bounds == ("> 0",) or (bounds == (">= 1",) and alternative.kind is int):
        return f"a positive {words.partition(' ')[2]}"
    return " ".join((words, " and ".join(bounds))).rstrip()
