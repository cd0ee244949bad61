"""What fails a node: the error's words, and silence afterwards."""

import inspect
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from engine_rig import (
    Blob,
    Collect,
    Count,
    Log,
    LogState,
    NetNote,
    Num,
    Piece,
    Pieces,
    Receive,
    Rig,
    Send,
    graph_of,
    nodes_of,
)

from dataflow.engine.events import Failed, Report, Started, StopAsked
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.errors import ConfigError, OperatorError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Artifact, Emissions, EndOfData, Gather, Operator
from dataflow.ports import Emission, In, Out
from dataflow.reports import OperatorReport
from dataflow.state import Reads, Writes


class MuteError(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise ValueError("nothing to say")


class Breaks(Operator):
    """Breaks in the way its field says."""

    how: str = "raise"
    inp = In(Num)
    out = Out(Num)

    def process(self, num: Num) -> Emissions:
        match self.how:
            case "raise":
                raise ValueError("boom")
            case "long":
                raise ValueError("my\nmulti  line " + "x" * 20_000)
            case "numpy":
                np.zeros(2) + np.zeros(3)
            case "exit":
                sys.exit(3)
            case "generator":
                raise GeneratorExit
            case "interrupt":
                raise KeyboardInterrupt
            case "mute":
                raise MuteError
            case "type":
                yield self.out(Blob(np.zeros(1)))  # type: ignore[arg-type]
            case "effect":
                yield 3  # type: ignore[misc]
            case "foreign":
                yield Emission("elsewhere", num)
            case "ako":
                raise ConfigError("no such thing", got=5, fix="try six")


class Returns(Operator):
    value: Any = 3
    inp = In(Num)
    out = Out(Num)

    def process(self, num: Num) -> Any:
        return self.value


class Sink(Operator):
    """Has no outputs, and so nothing that it could forget to yield."""

    inp = In(Num)

    def process(self, num: Num) -> None:
        pass


class Late(Operator):
    """Emits nothing, and says so; nor does its other hook."""

    inp = In(Num)
    out = Out(Num)

    def process(self, num: Num) -> Emissions:
        yield from ()

    def on_end(self) -> None:
        pass


class GateBreaks(Operator):
    inp = In(Num)
    out = Out(Num)

    def ready(self) -> bool:
        return bool(1 / 0)

    def process(self, num: Num) -> Emissions:
        yield self.out(num)


class GateAnswers(Operator):
    """A gate with whatever answer its author did not mean."""

    many: bool = False
    inp = In(Num)
    out = Out(Num)

    def ready(self) -> Any:
        return np.array([True, False]) if self.many else None

    def process(self, num: Num) -> Emissions:
        yield self.out(num)


class Misnumbered(Operator):
    """Numbers its steps with what is no int."""

    source = True
    numpy: bool = False
    out = Out(Piece)

    def process(self, tick: Tick) -> Emissions:
        step: Any = np.int64(tick.step) if self.numpy else float(tick.step)
        yield self.out(Piece(step, tick.shard, tick.shards, 0.0))


class YieldingGather(Gather):
    inp = In(Piece)
    out = Out(Num)

    def process(self, piece: Piece) -> Emissions:
        yield self.out(Num(piece.step))

    def merge(self, parts: list[Any]) -> Emissions:
        yield from ()


class Frozen(Log):
    """State that cannot be copied."""

    def create(self, node: NodeContext) -> LogState:
        return FrozenState()


class FrozenState(LogState):
    def snapshot(self) -> tuple[Any, ...]:
        raise RuntimeError("too cold")


class ReadsFrozen(Operator):
    inp = In(Num)
    out = Out(Num)
    frozen = Reads()

    def process(self, num: Num, frozen: Any) -> Emissions:
        yield from ()


class Nowhere(Send):
    """Sends to a node that is not there, or to none."""

    to: int | None = None

    def process(self, num: Num) -> Emissions:
        yield self.out(num, to=self.to)


class KeylessSend(Operator):
    pool = "network"
    sends = True
    inp = In(Num, key="missing")
    out = Out(Num)

    def process(self, num: Num) -> Emissions:
        yield self.out(num)


class Says(Operator):
    """Reports, and keeps a file."""

    value: Any = 1.0
    source = True
    said = Out(Num, reported=True)

    def process(self, tick: Tick) -> Emissions:
        if tick.step:
            yield EndOfData()
            return
        yield self.said(Num(self.value))
        yield Artifact("a.txt", b"abc")


class Overwrites(Says):
    """Keeps a file of the name that its field says."""

    name: str

    def process(self, tick: Tick) -> Emissions:
        yield Artifact(self.name, b"abc")


class SaysArray(Says):
    """Reports an array where a number is promised."""

    def process(self, tick: Tick) -> Emissions:
        yield self.said(Num(np.zeros(2)))  # type: ignore[arg-type]


class Keeps(Operator):
    inp = In(Num)
    out = Out(Num)
    log = Writes()

    def process(self, num: Num, log: LogState) -> Emissions:
        log.items.append(num.n)
        yield from ()


class TakesNothing(Operator):
    """Cannot be called with a message."""

    inp = In(Num)
    out = Out(Num)

    def process(self) -> Emissions:
        yield from ()


class OpensBadly(Count):
    def open(self, node: NodeContext) -> None:
        raise OSError("no disk")


def _line(method: Callable[..., Any], text: str) -> str:
    """``file:line`` of the line of a method that contains `text`."""
    lines, first = inspect.getsourcelines(method)
    number = next(number for number, line in enumerate(lines) if text in line)
    return f"{__file__}:{first + number}"


def _failure(operator: Operator, logs: tuple[str, ...] = ()) -> OperatorError:
    graph = graph_of({"count": Count(), "middle": operator}, [("count", "middle")], logs)
    rig = Rig(nodes_of(graph))
    rig.start()
    rig.finish_all()
    error = rig.failure()
    assert isinstance(error, OperatorError)
    return error


@pytest.mark.parametrize(
    ("how", "text", "what"),
    [
        ("raise", "boom", "operator 'middle' raised ValueError: boom"),
        ("numpy", "np.zeros(2)", "operator 'middle' raised ValueError: operands could not be broadcast"),
        ("exit", "sys.exit(3)", "operator 'middle' raised SystemExit: 3"),
        ("generator", "raise GeneratorExit", "operator 'middle' raised GeneratorExit"),
        ("mute", "raise MuteError", "operator 'middle' raised MuteError: (its __str__ raises)"),
        ("type", "Blob(np", "operator 'middle' raised TypeError: port 'out' emits Num, got Blob"),
    ],
)
def test_raising_operator_fails_naming_itself_node_and_line(how: str, text: str, what: str) -> None:
    error = _failure(Breaks(how=how))
    assert error.what.startswith(what)
    assert error.where == f"node node-0, {_line(Breaks.process, text)}"


def test_operator_that_raises_many_long_lines_fails_with_the_beginning_of_them_in_one() -> None:
    error = _failure(Breaks(how="long"))
    assert error.what.startswith("operator 'middle' raised ValueError: my multi line xxx")
    assert "\n" not in str(error)
    assert len(error.what) < 400


def test_interrupt_is_the_operators_own_on_a_thread_of_a_pool_and_ctrl_c_on_the_main_one() -> None:
    with ThreadPoolExecutor() as pool:
        error = pool.submit(_failure, Breaks(how="interrupt")).result()
    assert error.what == "operator 'middle' raised KeyboardInterrupt"
    assert error.where == f"node node-0, {_line(Breaks.process, 'raise KeyboardInterrupt')}"
    with pytest.raises(KeyboardInterrupt):
        _failure(Breaks(how="interrupt"))


def test_operator_that_cannot_be_called_fails_naming_its_class_and_no_line_of_the_engine() -> None:
    error = _failure(TakesNothing())
    assert error.what.startswith("operator 'middle' raised TypeError: ")
    assert error.where == f"node node-0, {_line(TakesNothing, 'class TakesNothing')}"


@pytest.mark.parametrize("how", ["effect", "foreign"])
def test_operator_that_yields_no_effect_of_its_own_fails(how: str) -> None:
    error = _failure(Breaks(how=how))
    assert error.what == "operator 'middle' yielded something that is no effect of its own"
    assert error.where == f"node node-0, {_line(Breaks, 'class Breaks')}"


@pytest.mark.parametrize(("value", "got"), [(3, 3), (None, "None")])
def test_operator_that_returns_no_effects_fails_naming_its_class(value: object, got: object) -> None:
    error = _failure(Returns(value=value))
    assert error.what == "operator 'middle' returned from process what is no effects"
    assert error.got == got
    assert error.where == f"node node-0, {_line(Returns, 'class Returns')}"
    assert "`yield from ()`" in error.fix


@pytest.mark.parametrize("operator", [Sink(), Late(), Returns(value=[])])
def test_operator_that_rightly_emits_nothing_runs_to_the_end(operator: Operator) -> None:
    graph = graph_of({"count": Count(), "middle": operator}, [("count", "middle")])
    run = MemoryDriver(nodes_of(graph)).execute()
    assert run.ended == {0}


def test_error_of_our_own_kind_keeps_its_kind_and_gains_its_place() -> None:
    graph = graph_of({"count": Count(), "middle": Breaks(how="ako")}, [("count", "middle")])
    with pytest.raises(ConfigError, match="operator 'middle': no such thing") as caught:
        MemoryDriver(nodes_of(graph)).execute()
    assert caught.value.got == 5
    assert caught.value.where == f"node node-0, {_line(Breaks.process, 'ConfigError')}"


def test_nothing_comes_after_failed() -> None:
    rig = Rig(nodes_of(graph_of({"count": Count(), "middle": Breaks()}, [("count", "middle")])))
    rig.start()
    rig.finish(rig.tasks[0])
    assert isinstance(rig.commands[-1], Failed)
    count = len(rig.commands)
    assert rig.give(Started()) == []
    assert rig.give(StopAsked()) == []
    assert len(rig.commands) == count


def test_gate_that_raises_fails_the_node() -> None:
    error = _failure(GateBreaks())
    assert error.what == "operator 'middle' raised ZeroDivisionError: division by zero"
    assert error.where == f"node node-0, {_line(GateBreaks.ready, '1 / 0')}"


@pytest.mark.parametrize(("many", "got"), [(False, "NoneType"), (True, "ndarray")])
def test_gate_that_says_neither_true_nor_false_fails_the_node(many: bool, got: str) -> None:
    error = _failure(GateAnswers(many=many))
    assert error.what == "operator 'middle' answered in ready with neither True nor False"
    assert error.got == got


@pytest.mark.parametrize("numpy", [True, False])
def test_step_that_is_no_int_fails_the_node_naming_the_operator(numpy: bool) -> None:
    graph = graph_of({"pieces": Misnumbered(numpy=numpy), "collect": Collect()}, [("pieces", "collect")], ["log"])
    rig = Rig(nodes_of(graph))
    rig.start()
    rig.finish(rig.tasks[0])
    assert rig.failure().what == "operator 'pieces' emits a Piece whose step, shard or shards is no int"
    assert rig.failure().fix == "convert it, as in int(step)"


def test_snapshot_that_raises_fails_the_node_naming_the_element() -> None:
    graph = LogicalGraph(name="cold").with_role("worker").with_state("frozen", Frozen(), role="worker")
    graph = graph.with_operator("count", Count(), role="worker")
    graph = graph.with_operator("read", ReadsFrozen(), role="worker").connect("count", "read")
    rig = Rig(nodes_of(graph))
    rig.start()
    rig.finish(rig.tasks[0])  # the number goes to the reader
    assert rig.failure().what == "state element 'frozen' raised RuntimeError: too cold"
    assert rig.failure().where == f"node node-0, {_line(FrozenState.snapshot, 'too cold')}"


@pytest.mark.parametrize(("to", "what"), [(None, "names no node"), (7, "names a node that the edge does not reach")])
def test_emission_to_nobody_fails_naming_the_edge(to: int | None, what: str) -> None:
    edges = [("send", "receive", Route.BY_DESTINATION), ("count", "send")]
    rig = Rig(nodes_of(graph_of({"count": Count(), "send": Nowhere(to=to), "receive": Receive()}, edges), 3))
    rig.start()
    rig.finish_all()
    assert rig.failure().what == f"operator 'send' {what} on send.out -> receive.inp"
    assert rig.failure().fix.endswith("one of: 1, 2")


def test_by_owner_message_without_partition_number_fails() -> None:
    edges = [("send", "receive", Route.BY_OWNER, True, "missing"), ("count", "send")]
    rig = Rig(nodes_of(graph_of({"count": Count(), "send": Send(), "receive": Receive()}, edges), 2))
    rig.start()
    rig.finish_all()
    expected = "operator 'send' emits on send.out -> receive.inp a message without partition number"
    assert rig.failure().what == expected


def test_port_keyed_by_a_field_the_message_lacks_fails() -> None:
    edges = [("send", "receive", Route.ONE_TO_ALL), ("count", "send")]
    rig = Rig(nodes_of(graph_of({"count": Count(), "send": KeylessSend(), "receive": Receive()}, edges), 2))
    rig.start()
    rig.finish_all()
    assert "has no field 'missing'" in rig.failure().what


def test_gather_that_yields_in_process_is_refused_before_the_start() -> None:
    graph = graph_of({"pieces": Pieces(), "gather": YieldingGather()}, [("pieces", "gather")])
    with pytest.raises(OperatorError, match="'gather' is a Gather and yields in process"):
        MemoryDriver(nodes_of(graph))


def test_operator_that_cannot_open_names_itself_and_its_line() -> None:
    graph = graph_of({"count": OpensBadly(), "note": NetNote()}, [("count", "note")], ["log"])
    with pytest.raises(OperatorError, match="operator 'count' raised OSError: no disk") as caught:
        MemoryDriver(nodes_of(graph)).execute()
    assert caught.value.where == f"node node-0, {_line(OpensBadly.open, 'no disk')}"


@pytest.mark.parametrize("name", ["events/plan.json", "events/node-0-000000.bin", "events", "Events/plan.json"])
def test_artifact_in_the_place_of_the_record_fails_its_operator(name: str) -> None:
    rig = Rig(nodes_of(graph_of({"says": Overwrites(name=name)}, [])))
    rig.start()
    rig.finish_all()
    failure = rig.failure()
    assert isinstance(failure, OperatorError)
    assert failure.what == "operator 'says' yielded an Artifact in events/, where the record of the run is"
    assert failure.got == name
    assert [command.what for command in rig.commands if isinstance(command, Report)] == []


@pytest.mark.parametrize("name", ["record.json", "Config.json", "curves.csv", "job.log", "record.json/a"])
def test_artifact_of_the_name_of_a_file_of_the_run_fails_its_operator(name: str) -> None:
    rig = Rig(nodes_of(graph_of({"says": Overwrites(name=name)}, [])))
    rig.start()
    rig.finish_all()
    assert rig.failure().what == "operator 'says' yielded an Artifact of a name that a run's own file has"
    assert rig.failure().got == name


def test_artifact_of_a_bad_name_fails_its_operator_naming_the_line() -> None:
    rig = Rig(nodes_of(graph_of({"says": Overwrites(name="../up")}, [])))
    rig.start()
    rig.finish_all()
    assert rig.failure().what == "operator 'says': an Artifact has a bad name"
    assert rig.failure().where == f"node node-0, {_line(Overwrites.process, 'Artifact')}"


def test_artifact_whose_name_only_begins_like_the_record_is_kept() -> None:
    rig = Rig(nodes_of(graph_of({"says": Overwrites(name="events.csv")}, [])))
    rig.start()
    rig.finish(rig.tasks[0])
    assert [command.what for command in rig.commands if isinstance(command, Report)] == [Artifact("events.csv", b"abc")]


def test_report_of_an_array_is_refused() -> None:
    rig = Rig(nodes_of(graph_of({"says": SaysArray()}, [])))
    rig.start()
    rig.finish_all()
    assert rig.failure().what == "operator 'says' reports 'n', which is no plain number or text"


@pytest.mark.parametrize(
    ("value", "reported"), [(2.5, 2.5), (3, 3), ("x", "x"), (True, True), (None, None), (float("nan"), None)]
)
def test_report_and_artifact_of_an_unconnected_port_come_with_the_commit(value: object, reported: object) -> None:
    rig = Rig(nodes_of(graph_of({"says": Says(value=value)}, [])))
    rig.start()
    rig.finish_all()
    told = [command.what for command in rig.commands if isinstance(command, Report)]
    assert told == [
        OperatorReport("says.said", {"n": reported, "origin": 0, "to": 0}),
        Artifact("a.txt", b"abc"),
    ]


def test_reported_port_inside_a_chain_reports_and_feeds_the_next_operator() -> None:
    graph = graph_of({"says": Says(value=4), "note": Keeps()}, [("says", "note")], ["log"])
    plan = nodes_of(graph)
    assert [chain.operators for chain in plan.chains] == [("says", "note")]
    run = MemoryDriver(plan).execute()
    assert run.reports == [(0, OperatorReport("says.said", {"n": 4, "origin": 0, "to": 0}))]
    assert run.nodes[0].states["log"].snapshot() == (4,)
    assert run.artifacts == {"a.txt": b"abc"}
