"""Typed ports: where messages enter and leave an operator.

A port is declared on the operator's class: ``batches = In(Batch)``, ``blurred = Out(Batch)``. On an instance an output
port is called with a message and gives an `Emission` for `process` to yield.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Generic, Self, SupportsIndex, TypeVar, overload

from dataflow.message import Message

M = TypeVar("M", bound=Message)


@dataclass(init=False, slots=True)
class Emission:
    """A message leaving through a port; never changed.

    Args:
        port: name of the output port.
        message: what leaves.
        to: index of the receiving node, for edges whose route is by destination.
    """

    port: str
    message: Message
    to: int | None

    def __init__(self, port: str, message: Message, to: int | None = None) -> None:
        self.port, self.message, self.to = port, message, to


class In(Generic[M]):
    """An input port for messages of type `kind`.

    Args:
        kind: the message type accepted (its subtypes too).
        capacity: how many messages may wait here before the operators upstream are held back.
        key: name of an integer field: messages wait in one queue per value, and a queue whose key has no credit
            (see `Operator.sends`) does not hold back the others.
        latest: names of fields: a message replaces a waiting one that is equal in all of them. Such a port is
            bounded by the number of distinct values, not by `capacity`.
    """

    def __init__(
        self, kind: type[M], *, capacity: int = 8, key: str | None = None, latest: tuple[str, ...] = ()
    ) -> None:
        self.kind, self.capacity, self.key, self.latest = kind, capacity, key, latest
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


class Out(Generic[M]):
    """An output port for messages of type `kind`.

    Args:
        kind: the message type emitted.
        reported: the coordinator is told of every message; its fields must all be scalars.
    """

    def __init__(self, kind: type[M], *, reported: bool = False) -> None:
        self.kind, self.reported = kind, reported
        self.name = ""
        self._bound = BoundOut(self)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> BoundOut[M]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | BoundOut[M]:
        return self if instance is None else self._bound


class BoundOut(Generic[M]):
    """An output port of an operator instance; call it with a message to get an `Emission`."""

    __slots__ = ("_port",)

    def __init__(self, port: Out[M]) -> None:
        self._port = port

    def __call__(self, message: M, *, to: SupportsIndex | None = None) -> Emission:
        """An emission of `message`, for node `to` if the edge's route is by destination.

        Raises:
            TypeError: the message is not of the port's type, or `to` is no integer.
        """
        port = self._port
        if not isinstance(message, port.kind):
            what = f"port {port.name!r} emits {port.kind.__name__}, got {type(message).__name__}"
            raise TypeError(what)
        return Emission(port.name, message, None if to is None else index(to))
