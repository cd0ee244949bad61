"""When a checkpoint is taken: before the operator goes on, once it could, and with nobody writing."""

from typing import Any

import numpy as np
import pytest
from engine_rig import Count, LogState, Num, Rig, Send, graph_of, nodes_of

from dataflow.engine.events import Report, Snapshot
from dataflow.errors import OperatorError
from dataflow.graph.routes import Route
from dataflow.node_context import NodeContext
from dataflow.operators_api import Checkpoint, Emissions, Operator
from dataflow.ports import In, Out
from dataflow.state import Reads, StateElement, Writes


class NotedState(LogState):
    def tensors(self) -> dict[str, np.ndarray]:
        if "broken" in self.items:
            raise ValueError("cannot be kept")
        if "object" in self.items:
            return {"notes": np.array(self.items, object)}
        return {"notes": np.array(self.items, np.int64)}


class Noted(StateElement):
    def create(self, node: NodeContext) -> NotedState:
        del node
        return NotedState()


class Mark(Operator):
    """Notes numbers; a checkpoint is due at multiples of ten. Not ready while the last note of `gate` is odd."""

    pool = "network"
    receives = True
    inp = In(Num)
    first = Writes()
    gate = Reads()

    def ready(self, gate: tuple[int, ...]) -> bool:
        return not gate or gate[-1] % 2 == 0

    def process(self, num: Num, first: NotedState) -> Emissions:
        first.items.append(num.n)
        if num.n % 10 == 0:
            yield Checkpoint(num.n, steps=num.n + 3 if num.n > 50 else None)


class Write(Operator):
    pool = "network"
    receives = True
    inp = In(Num)
    second = Writes()
    gate = Writes()

    def process(self, num: Num, second: NotedState, gate: NotedState) -> Emissions:
        second.items.append(num.n)
        gate.items.append(num.n)
        yield from ()


class MarkAndTell(Mark):
    out = Out(Num)

    def process(self, num: Num, first: NotedState) -> Emissions:
        yield self.out(num)
        yield from Mark.process(self, num, first)


class Later(Operator):
    """Notes what it is told, in a task of its own."""

    pool = "compute"
    drained = True
    told = In(Num)
    second = Writes()

    def process(self, num: Num, second: NotedState) -> Emissions:
        second.items.append(num.n)
        yield from ()


def test_checkpoint_waits_for_who_is_to_be_drained_of_what_it_was_sent() -> None:
    graph = graph_of(
        {"a": Count(limit=0), "send_a": Send(), "mark": MarkAndTell(), "later": Later()},
        [("send_a", "mark", Route.ONE_TO_ALL), ("a", "send_a"), ("mark", "later")],
    )
    for name in ("first", "second", "gate"):
        graph = graph.with_state(name, Noted(), role="worker")
    made = Rig(nodes_of(graph, 2, network_tasks=2))
    made.start()
    made.finish_all()
    for number in (9, 10, 11):
        mark(made, number)
    made.finish_one("mark")
    made.finish_one("mark")
    assert made.running() == ["later"]
    assert taken(made) == []
    made.finish_one("later")
    assert taken(made) == []
    made.finish_one("later")
    assert taken(made) == [(10, {"first/notes": [9, 10], "second/notes": [9, 10], "gate/notes": []})]
    assert made.running() == ["mark"]


def rig() -> Rig:
    graph = graph_of(
        {
            "a": Count(limit=0),
            "b": Count(limit=0),
            "send_a": Send(),
            "send_b": Send(),
            "mark": Mark(),
            "write": Write(),
        },
        [
            ("send_a", "mark", Route.ONE_TO_ALL),
            ("send_b", "write", Route.ONE_TO_ALL),
            ("a", "send_a"),
            ("b", "send_b"),
        ],
    )
    for name in ("first", "second", "gate"):
        graph = graph.with_state(name, Noted(), role="worker")
    made = Rig(nodes_of(graph, 2, network_tasks=2))
    made.start()
    made.finish_all()
    return made


def taken(made: Rig) -> list[tuple[int, dict[str, Any]]]:
    snapshots = [command.what for command in made.commands if isinstance(command, Report)]
    return [
        (each.number, {name: tensor.tolist() for name, tensor in each.tensors.items()})
        for each in snapshots
        if isinstance(each, Snapshot)
    ]


def mark(made: Rig, number: int) -> None:
    made.arrive(Num(number), edge=0)


def write(made: Rig, number: int) -> None:
    made.arrive(Num(number), edge=1)


def test_checkpoint_is_taken_before_the_operator_takes_what_waits() -> None:
    made = rig()
    mark(made, 10)
    mark(made, 11)
    made.finish_one("mark")
    assert taken(made) == [(10, {"first/notes": [10], "second/notes": [], "gate/notes": []})]
    assert made.running() == ["mark"]


def test_checkpoint_has_as_many_steps_as_an_operator_says_that_makes_none() -> None:
    for number, steps in ((10, None), (60, 63)):
        made = rig()
        mark(made, number)
        made.finish_one("mark")
        (snapshot,) = (
            each.what for each in made.commands if isinstance(each, Report) and isinstance(each.what, Snapshot)
        )
        assert snapshot.steps == steps


def test_checkpoint_waits_for_who_writes_and_nobody_begins_to_write_before_it() -> None:
    made = rig()
    mark(made, 20)
    write(made, 2)
    write(made, 4)
    mark(made, 21)
    made.finish_one("mark")
    assert made.running() == ["write"]
    assert taken(made) == []
    made.finish_one("write")
    assert taken(made) == [(20, {"first/notes": [20], "second/notes": [2], "gate/notes": [2]})]
    assert made.running() == ["write"]


def test_checkpoint_waits_until_the_operator_is_ready_while_others_go_on() -> None:
    made = rig()
    mark(made, 30)
    write(made, 3)
    made.finish_one("write")
    made.finish_one("mark")
    assert taken(made) == []
    write(made, 5)
    made.finish_one("write")
    assert taken(made) == []
    write(made, 6)
    made.finish_one("write")
    assert taken(made) == [(30, {"first/notes": [30], "second/notes": [3, 5, 6], "gate/notes": [3, 5, 6]})]


def test_what_was_taken_is_not_changed_by_later_writes() -> None:
    made = rig()
    mark(made, 40)
    made.finish_all()
    mark(made, 41)
    made.finish_all()
    assert taken(made)[0][1]["first/notes"] == [40]


def test_state_that_cannot_be_kept_fails_the_node_by_its_name() -> None:
    made = rig()
    made.log("second").append("broken")
    mark(made, 50)
    made.finish_all()
    error = made.failure()
    assert isinstance(error, OperatorError)
    assert "state element 'second'" in str(error)
    assert "cannot be kept" in str(error)


def test_state_of_a_type_that_no_file_can_have_fails_the_node_by_its_name() -> None:
    made = rig()
    made.log("second").append("object")
    mark(made, 50)
    made.finish_all()
    error = made.failure()
    assert isinstance(error, OperatorError)
    assert error.what == "state element 'second': gives in tensors() an array of a type that cannot be kept"
    assert error.got == "notes: object"
    assert f"{__file__}:" in error.where


def test_state_begins_anew_by_default_where_there_is_nothing_for_it() -> None:
    state = NotedState()
    state.items.append(1)
    state.resume({}, 0, {0: 5})
    assert state.items == [1]


def test_state_that_keeps_what_is_no_array_says_what_to_give() -> None:
    class Counted(NotedState):
        def tensors(self) -> dict[str, Any]:
            return {"count": 3}

    with pytest.raises(TypeError, match=r"tensors\(\) gives a int as 'count': give an array, as np\.array of it"):
        Counted().kept()
