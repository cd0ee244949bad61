from __future__ import annotations

import pytest

from dataflow.errors import AkoError, GraphError, JobFailedError, OperatorError, PlanError, WireError, suggest


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
