from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dataflow.errors import OperatorError
from dataflow.message import Message, Sharded
from dataflow.node_context import NodeContext
from dataflow.operators_api import (
    Artifact,
    Emissions,
    Gather,
    Operator,
    Sample,
    declared_at,
    needs,
    qualified_name,
    random_generator,
)
from dataflow.ports import In, Out
from dataflow.state import Reads, Writes


@dataclass(frozen=True, slots=True)
class Text(Message):
    text: str


class Shout(Operator):
    marks: int = 1
    words = In(Text)
    loud = Out(Text)

    def process(self, word: Text) -> Emissions:
        yield self.loud(Text(word.text.upper() + "!" * self.marks))


class Whisper(Shout):
    model = Reads()
    count = Writes()
    quiet = Out(Text)

    def process(self, word: Text, model: Any, *, rng: np.random.Generator) -> Emissions:
        yield self.quiet(word)

    def on_end(self, count: Any) -> Emissions:
        yield self.quiet(Text("end"))

    def on_left(self, node: int, count: Any) -> Emissions:
        yield self.quiet(Text(f"{node} left"))

    def ready(self, model: Any) -> bool:
        return bool(model)


class Total(Gather):
    parts = In(Sharded)


def test_operator_process_yields_emissions() -> None:
    (emission,) = Shout(marks=2).process(Text("hey"))
    assert (emission.port, emission.message) == ("loud", Text("HEY!!"))  # type: ignore[union-attr]


def test_operator_parameters_are_typed_closed_and_frozen() -> None:
    with pytest.raises(ValidationError):
        Shout(marks="many")  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Shout(volume=3)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        Shout().marks = 2  # type: ignore[misc]
    assert Shout(marks=4).model_dump_json() == '{"marks":4}'


def test_operator_declarations_are_inherited_in_order() -> None:
    assert list(Whisper.inputs()) == ["words"]
    assert list(Whisper.outputs()) == ["loud", "quiet"]
    assert list(Whisper.accesses()) == ["model", "count"]


def test_needs_are_the_parameters_behind_the_positional_ones() -> None:
    assert needs(Whisper.process, "process") == ("model", "rng")
    assert needs(Whisper.on_end, "on_end") == ("count",)
    assert needs(Whisper.on_left, "on_left") == ("count",)
    assert needs(Whisper.ready, "ready") == ("model",)
    assert needs(Shout.process, "process") == ()


@pytest.mark.parametrize(("hook", "signature"), [("process", "message, modle"), ("merge", "parts, modle")])
def test_operator_hook_asking_for_undeclared_state_is_refused(hook: str, signature: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def {hook}(self, {signature}): yield", scope)
    with pytest.raises(OperatorError) as caught:
        type("Typo", (Operator,), {hook: scope[hook], "model": Reads(), "__module__": __name__})
    assert str(caught.value) == (
        f"Typo.{hook} asks for 'modle', which is no state the class declares at {caught.value.where}; "
        "declare it, as in `modle = Reads()`, or ask for one of: model, node, rng"
    )


def test_operator_hook_error_names_the_users_line() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    with pytest.raises(OperatorError) as caught:

        class Wrong(Operator):
            def process(self, message: Text, model: Any) -> Emissions:
                yield from ()

    assert caught.value.where == f"{__file__}:{frame.f_lineno - 4}"


def test_operator_without_process_says_so() -> None:
    class Empty(Operator):
        pass

    with pytest.raises(OperatorError, match="operator Empty does not define process"):
        Empty().process(Text(""))


def test_gather_without_process_or_merge_says_so() -> None:
    with pytest.raises(OperatorError, match=r"operator Total does not define process; .* return the part"):
        Total().process(Sharded(0, 0, 1))
    with pytest.raises(OperatorError, match="operator Total does not define merge"):
        Total().merge([])


def test_qualified_name_is_module_and_class() -> None:
    assert qualified_name(Shout) == f"{__name__}:Shout"


def test_declared_at_class_with_source_is_its_line() -> None:
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    assert declared_at(Shout) == f"{__file__}:{lines.index('class Shout(Operator):') + 1}"


def test_declared_at_class_without_source_is_its_name() -> None:
    assert declared_at(int) == "builtins:int"


def test_random_generator_same_place_gives_the_same_numbers_in_another_process() -> None:
    program = (
        "from dataflow.operators_api import random_generator; "
        "print(random_generator(7, 'source', 1, 2, 3).integers(1 << 62))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert int(result.stdout) == random_generator(7, "source", 1, 2, 3).integers(1 << 62)


def test_random_generator_any_other_place_gives_other_numbers() -> None:
    places = [
        (7, "source", 1, 2, 3),
        (8, "source", 1, 2, 3),
        (7, "sourc", 1, 2, 3),
        (7, "source", 2, 2, 3),
        (7, "source", 1, 3, 3),
        (7, "source", 1, 2, 4),
    ]
    assert len({int(random_generator(*place).integers(1 << 62)) for place in places}) == 6


def test_node_context_rank_size_and_peers_follow_the_role() -> None:
    node = NodeContext(index=5, name="node-5", role="server", members={"worker": (0, 1), "server": (4, 5, 6)})
    assert (node.rank, node.size, node.peers) == (1, 3, (4, 6))


def test_node_context_default_is_a_worker_alone() -> None:
    node = NodeContext()
    assert (node.rank, node.size, node.peers) == (0, 1, ())


@pytest.mark.parametrize(("name", "value"), [("x", "text"), ("x", np.zeros(3)), ("x", None), (5, 1.0)])
def test_sample_of_anything_but_a_named_number_is_refused(name: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="a Sample is a name and a number"):
        Sample(name, value)


@pytest.mark.parametrize("value", [1, 1.5, np.float32(2), np.int64(3)])
def test_sample_takes_numbers_of_numpy_too(value: Any) -> None:
    assert Sample("x", value).value == value


@pytest.mark.parametrize(("name", "data"), [("x.txt", "text"), (5, b""), ("x.txt", None)])
def test_artifact_of_anything_but_named_bytes_is_refused(name: Any, data: Any) -> None:
    with pytest.raises(TypeError, match="an Artifact is a name and bytes"):
        Artifact(name, data)
