from __future__ import annotations

import numpy as np
import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from dataflow.errors import (
    AkoError,
    GraphError,
    JobFailedError,
    OperatorError,
    PlanError,
    WireError,
    in_words,
    one_line,
    suggest,
)


def test_error_text_of_all_parts_is_one_line() -> None:
    error = GraphError("the edge is wrong", got="a -> b", where="job.py:3", fix="turn it round")
    assert str(error) == "the edge is wrong (got a -> b) at job.py:3; turn it round"
    assert (error.what, error.got, error.where, error.fix) == (
        "the edge is wrong",
        "a -> b",
        "job.py:3",
        "turn it round",
    )


def test_error_text_of_what_alone_is_what() -> None:
    assert str(AkoError("it broke")) == "it broke"


def test_error_got_falsy_value_is_shown() -> None:
    assert str(AkoError("too few", got=0)) == "too few (got 0)"


def test_error_got_long_value_is_cut_to_200_characters() -> None:
    shown = str(AkoError("long", got="x" * 500)).removeprefix("long (got ").removesuffix(")")
    assert (len(shown), shown[-5:]) == (200, "xx...")
    assert "..." not in str(AkoError("fits", got="x" * 200))
    assert str(AkoError("one more", got="x" * 201)) == f"one more (got {'x' * 197}...)"


@pytest.mark.parametrize(
    ("got", "shown"),
    [
        ("minst", "minst"),
        ("two words", "two words"),
        ("", "''"),
        (" lr", "' lr'"),
        ("lr\n", "'lr\\n'"),
        ("\x1b[2J", "'\\x1b[2J'"),
        (("a", "b"), "('a', 'b')"),
    ],
)
def test_error_got_text_is_in_quotes_only_where_it_could_be_misread(got: object, shown: str) -> None:
    assert str(AkoError("no", got=got)) == f"no (got {shown})"


def test_error_got_value_whose_repr_has_several_lines_is_shown_in_one() -> None:
    shown = str(AkoError("no", got=np.zeros((40, 40))))
    assert shown.startswith("no (got array([[0., 0., 0., ..., 0., 0., 0.], [0., ")
    assert "\n" not in shown


def test_words_of_an_exception_are_one_line_and_cut() -> None:
    shown = in_words(RuntimeError("my\nmulti  line " + "x" * 20_000))
    assert (shown[:14], shown[-4:], len(shown)) == ("my multi line ", "x...", 300)
    assert one_line("a\n\tb") == "a b"
    assert one_line("\x1b]0;mine\x07 \x1b[31mred\u202e é") == r"\x1b]0;mine\x07 \x1b[31mred\u202e é"


class Noise(BaseModel):
    sigma: float = Field(ge=0)
    kinds: list[str] = []

    @field_validator("kinds")
    @classmethod
    def _check(cls, value: list[str]) -> list[str]:
        if value:
            message = "no kinds yet"
            raise ValueError(message)
        return value


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sigma": -1}, "Noise.sigma: must be greater than or equal to 0 (got -1)"),
        ({"sigma": 0, "kinds": [1]}, "Noise.kinds.0: must be a valid string (got 1)"),
        ({"sigma": 0, "kinds": ["a"]}, "Noise.kinds: no kinds yet (got ['a'])"),
        ({}, "Noise.sigma: Field required"),
    ],
)
def test_words_of_a_value_that_pydantic_refuses_are_one_line_without_its_web_page(
    values: dict[str, object], words: str
) -> None:
    with pytest.raises(ValidationError) as raised:
        Noise.model_validate(values)
    assert in_words(raised.value) == words


@pytest.mark.parametrize(
    ("kind", "code"), [(GraphError, 2), (PlanError, 2), (OperatorError, 1), (WireError, 1), (JobFailedError, 1)]
)
def test_error_exit_code_is_2_for_bad_input_and_1_for_failures(kind: type[AkoError], code: int) -> None:
    assert kind("x").exit_code == code
    assert issubclass(kind, AkoError)


def test_suggest_near_name_is_offered_before_the_list() -> None:
    assert suggest("sorce", ["send", "source"]) == "did you mean 'source'? known: send, source"


def test_suggest_nothing_near_lists_all_sorted() -> None:
    assert suggest("zzz", ["send", "apply"]) == "known: apply, send"
