from __future__ import annotations

from dataclasses import dataclass

import pytest

from dataflow.message import Message
from dataflow.ports import BoundOut, Emission, In, Out


@dataclass(frozen=True, slots=True)
class Word(Message):
    text: str


@dataclass(frozen=True, slots=True)
class LoudWord(Word):
    volume: float = 1.0


@dataclass(frozen=True, slots=True)
class Number(Message):
    value: int


class Holder:
    words = In(Word, capacity=2, key="text", latest=("text",))
    said = Out(Word)
    told = Out(Number, reported=True)


def test_port_name_is_the_attributes() -> None:
    assert (Holder.words.name, Holder.said.name) == ("words", "said")


def test_in_options_are_kept() -> None:
    port = Holder.words
    assert (port.kind, port.capacity, port.key, port.latest) == (Word, 2, "text", ("text",))


def test_in_defaults_are_one_queue_of_8() -> None:
    port = In(Word)
    assert (port.capacity, port.key, port.latest) == (8, None, ())


def test_out_on_a_class_is_the_port() -> None:
    assert isinstance(Holder.said, Out)
    assert (Holder.said.reported, Holder.told.reported) == (False, True)


def test_out_on_an_instance_makes_emissions() -> None:
    said = Holder().said
    assert isinstance(said, BoundOut)
    assert said(Word("hello")) == Emission("said", Word("hello"), None)
    assert said(Word("hello"), to=0) == Emission("said", Word("hello"), 0)


def test_out_accepts_a_subtype() -> None:
    assert Holder().said(LoudWord("hey")).message == LoudWord("hey")


def test_out_refuses_another_type() -> None:
    with pytest.raises(TypeError, match="port 'said' emits Word, got Number"):
        Holder().said(Number(3))  # type: ignore[arg-type]
