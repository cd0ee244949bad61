"""Replays of simulated runs: to the end, to where a record breaks off, to the first difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ako_jobs.jobs import load_job, prepare
from dataflow.engine import recording
from dataflow.engine.job_life import JobState
from dataflow.engine.recording import Chunk, Kind, Noted, pack
from dataflow.errors import DataError
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from dataflow.sim.costs import TaskKind
from dataflow.sim.faults import parse_fault
from dataflow.sim.model import ClusterModel
from dataflow.sim.record import recorded_plan
from dataflow.sim.replay import Difference, Replayed, compare, replay
from dataflow.sim.run import SimRun
from dataflow.sim.simulator import Simulator
from operators.messages import Batch

SETTINGS = {"epochs": 0.5, "batch": 8, "lr": 0.02, "warm_start": 0, "seed": 3}
MEANS = {TaskKind("compute", "step", first): 0.002 for first in (False, True)}

drawn: list[int] = []
"""What `Fickle` remembers from one run to the next."""


class Fickle(Operator):
    """Changes an image of step 5 on node 2, otherwise each time that it is run."""

    batches = In(Batch)
    out = Out(Batch)

    def process(self, batch: Batch, node: NodeContext) -> Emissions:
        if batch.step == 5 and node.index == 2:
            drawn.append(0)
            yield self.out(batch.with_images(batch.images + np.float32(0.01 * len(drawn))))
        else:
            yield self.out(batch)


class Fails(Operator):
    """Raises at step 5 on node 1."""

    batches = In(Batch)
    out = Out(Batch)

    def process(self, batch: Batch, node: NodeContext) -> Emissions:
        if batch.step == 5 and node.index == 1:
            what = "step five"
            raise ValueError(what)
        yield self.out(batch)


def simulated(job: str, *faults: str, extra: Operator | None = None, nodes: int = 3, **settings: Any) -> SimRun:
    spec = prepare(load_job(job), {**SETTINGS, **settings}, nodes).recorded().spec
    if extra is not None:
        spec = spec.model_copy(update={"graph": spec.graph.insert_after("source", extra)})
    model = ClusterModel(compute="gamma", step_s=0.002, rate=2e6, faults=tuple(map(parse_fault, faults)))
    return Simulator(spec, model, MEANS).run()


@pytest.fixture(scope="module")
def ako() -> SimRun:
    return simulated("ako", p=3)


def weights(nodes: Any) -> list[bytes]:
    return [
        state.tensors()["values"].tobytes()
        for node in nodes
        for state in node.states.values()
        if "values" in state.tensors()
    ]


def files(run: SimRun) -> dict[str, bytes]:
    return {name: data for name, data in run.artifacts.items() if not name.startswith("events/")}


def changed(artifacts: Mapping[str, bytes], node: int, change: Callable[[list[Noted]], None]) -> dict[str, bytes]:
    """A record with other events of a node."""
    name = recording.chunk_name(node, 0)
    chunk = Chunk.decode(artifacts[name])
    events = list(chunk.events())
    change(events)
    return {**artifacts, name: replace(chunk, packed=b"".join(map(pack, events))).encode()}


def first_of(run: SimRun, node: int, kind: Kind, nth: int = 0) -> int:
    """Number of an event of a node."""
    events = Chunk.decode(run.artifacts[recording.chunk_name(node, 0)]).events()
    return [number for number, event in enumerate(events) if event.kind == kind][nth]


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        ("ako", {"p": 3}),
        ("ako", {"phantom": True}),
        ("all_to_all", {"consistency": "async"}),
        ("parameter_server", {"consistency": "async"}),
        ("parameter_server", {"consistency": "ssp", "servers": "all"}),
        ("tree", {"flow": "period", "period": "5ms"}),
        ("tree", {"then": "star", "change_after": 5}),
    ],
)
def test_replay_of_a_simulated_run_with_gamma_times_and_a_cut_is_identical(job: str, settings: dict[str, Any]) -> None:
    run = simulated(job, "cut:0-2@0.01+0.05", "slow:1@0.02+0.05x5", **settings)
    assert run.state is JobState.FINISHED
    replayed = replay(run.plan, run.artifacts.get)
    assert replayed.complete
    assert weights(replayed.nodes) == weights(run.nodes)
    assert replayed.artifacts == files(run) != {}
    assert len(replayed.reports) > 0
    assert compare(replayed, run.artifacts.get, reports(replayed)) is None


def reports(replayed: Replayed) -> list[dict[str, Any]]:
    """Reports as a run's record has them."""
    return [{**report.fields, "node": node, "port": report.port, "time_s": 1.0} for node, report in replayed.reports]


def test_simulated_runs_of_one_seed_have_equal_records(ako: SimRun) -> None:
    assert simulated("ako", p=3).artifacts == ako.artifacts


def test_recording_a_simulated_run_changes_nothing(ako: SimRun) -> None:
    spec = prepare(load_job("ako"), {**SETTINGS, "p": 3}, 3).spec
    plain = Simulator(spec, ClusterModel(compute="gamma", step_s=0.002, rate=2e6), MEANS).run()
    assert plain.artifacts == files(ako)
    assert plain.elapsed_s == ako.elapsed_s


@pytest.mark.parametrize(
    ("job", "settings"),
    [("ako", {"p": 3}), ("all_to_all", {"consistency": "async"})],
)
@pytest.mark.parametrize("fault", ["fail:2@0.05", "fail:2@0.05+0.01", "cut:1-2@0.05"])
def test_replay_of_a_node_that_dies_or_comes_back_gives_every_event_again(
    job: str, settings: dict[str, Any], fault: str
) -> None:
    run = simulated(job, fault, **settings)
    assert run.state is JobState.FINISHED
    assert (recording.chunk_name(2, 0, 1) in run.artifacts) == (fault == "fail:2@0.05+0.01")
    replayed = replay(run.plan, run.artifacts.get)
    assert replayed.difference is None
    assert replayed.complete
    assert weights(replayed.nodes) == weights(run.nodes)
    assert replayed.artifacts == files(run)


def test_replay_of_an_operator_that_raised_fails_in_the_same_words() -> None:
    run = simulated("ako", extra=Fails())
    replayed = replay(run.plan, run.artifacts.get)
    assert replayed.complete
    assert list(replayed.failures) == [1]
    assert f"node node-1: {replayed.failures[1]}" in run.reason
    assert "ValueError: step five" in run.reason


def test_replay_of_an_operator_that_is_not_deterministic_names_the_first_message_that_differs() -> None:
    run = simulated("all_to_all", extra=Fickle(), consistency="bsp")
    replayed = replay(run.plan, run.artifacts.get)
    assert replayed.difference is not None
    receiver, event = replayed.difference.node, replayed.difference.event
    assert receiver in (0, 1)
    assert "what node-2 sends on edge " in replayed.difference.what
    assert replayed.difference.what.endswith(" had other values")
    # Of node 2, the gradients of steps 0 to 4 were as in the run: that of step 5 is the sixth.
    events = list(Chunk.decode(run.artifacts[recording.chunk_name(receiver or 0, 0)]).events())
    from_2 = [number for number, noted in enumerate(events) if noted.kind == Kind.MESSAGE_ARRIVED and noted.node == 2]
    assert event == from_2[5]
    assert compare(replayed, run.artifacts.get, []) == replayed.difference


def test_replay_of_a_message_with_another_checksum_stops_there(ako: SimRun) -> None:
    event = first_of(ako, 1, Kind.MESSAGE_ARRIVED, 4)

    def change(events: list[Noted]) -> None:
        events[event] = events[event]._replace(checksum=events[event].checksum ^ 1)

    difference = replay(ako.plan, changed(ako.artifacts, 1, change).get).difference
    assert difference is not None
    assert (difference.node, difference.event) == (1, event)


def test_replay_of_a_message_with_another_size_says_both(ako: SimRun) -> None:
    event = first_of(ako, 1, Kind.MESSAGE_ARRIVED)

    def change(events: list[Noted]) -> None:
        events[event] = events[event]._replace(amount=77)

    difference = replay(ako.plan, changed(ako.artifacts, 1, change).get).difference
    assert difference is not None
    assert " had 77 bytes, and has " in difference.what


def test_replay_of_a_task_that_was_never_started_differs(ako: SimRun) -> None:
    event = first_of(ako, 2, Kind.TASK_FINISHED, 3)

    def change(events: list[Noted]) -> None:
        events[event] = events[event]._replace(amount=10_000)

    difference = replay(ako.plan, changed(ako.artifacts, 2, change).get).difference
    assert difference == Difference("task 10000 had finished, and is not under way in the replay", 2, event)


def test_replay_of_a_task_that_failed_in_the_run_only_differs(ako: SimRun) -> None:
    event = first_of(ako, 0, Kind.TASK_FINISHED)

    def change(events: list[Noted]) -> None:
        events[event] = events[event]._replace(failed=1)

    difference = replay(ako.plan, changed(ako.artifacts, 0, change).get).difference
    assert difference is not None
    assert (difference.node, difference.event) == (0, event)
    assert difference.what.endswith(" had failed, and does not fail")


def test_replay_of_credit_that_nobody_grants_differs(ako: SimRun) -> None:
    event = first_of(ako, 0, Kind.CREDIT_GRANTED)
    granter: list[int] = []

    def change(events: list[Noted]) -> None:
        events[event] = events[event]._replace(amount=1 << 60)
        granter.append(events[event].node)

    replayed = replay(ako.plan, changed(ako.artifacts, 0, change).get)
    assert replayed.events[0] == event
    assert replayed.difference == Difference(
        f"node-{granter[0]} never does what this event (CREDIT_GRANTED) follows from", 0, event
    )


def test_replay_of_a_record_that_breaks_off_goes_as_far_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "CHUNK_EVENTS", 50)
    run = simulated("ako", p=3)
    kept = {name: data for name, data in run.artifacts.items() if name < "events/node-1-000002" or "node-1" not in name}
    replayed = replay(run.plan, kept.get)
    assert replayed.events[1] == 100
    assert replayed.broken == {1}
    assert replayed.difference is None
    assert not replayed.complete
    # The others stop at what follows from what node 1 did later, perhaps through each other.
    assert list(replayed.waiting) == [0, 2]
    assert 1 in replayed.waiting.values()
    whole = replay(run.plan, run.artifacts.get).events
    assert all(0 < replayed.events[node] < whole[node] for node in (0, 2))
    assert compare(replayed, run.artifacts.get, reports(replay(run.plan, run.artifacts.get))) is None


def test_replay_of_a_record_with_a_chunk_missing_goes_up_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "CHUNK_EVENTS", 50)
    run = simulated("ako", p=3)
    replayed = replay(run.plan, {name: data for name, data in run.artifacts.items() if "node-2-000001" not in name}.get)
    assert replayed.events[2] == 50
    assert replayed.broken == {2}


def test_replay_of_a_chunk_of_another_node_is_refused(ako: SimRun) -> None:
    mixed = {**ako.artifacts, recording.chunk_name(0, 0): ako.artifacts[recording.chunk_name(1, 0)]}
    with pytest.raises(DataError, match=r"not that of node 0 from event 0 on \(got node 1, event 0\)"):
        replay(ako.plan, mixed.get)


def test_replay_of_a_truncated_chunk_is_refused(ako: SimRun) -> None:
    name = recording.chunk_name(2, 0)
    with pytest.raises(DataError, match=r"cut off.* at events/node-2-000000.bin"):
        replay(ako.plan, {**ako.artifacts, name: ako.artifacts[name][:-13]}.get)


def test_replay_of_chunks_of_another_plan_is_refused(ako: SimRun) -> None:
    other = simulated("ako", p=2)
    with pytest.raises(DataError, match="the record is of another plan than the one beside it"):
        replay(other.plan, {**ako.artifacts, recording.PLAN_FILE: other.artifacts[recording.PLAN_FILE]}.get)


def test_replay_with_another_plan_than_the_recorded_one_is_refused(ako: SimRun) -> None:
    again = "the job builds another plan than the one of the record: other graph at events/plan.json"
    with pytest.raises(DataError, match=again):
        replay(simulated("ako", p=2).plan, ako.artifacts.get)
    with pytest.raises(DataError, match="other seed at"):
        replay(ako.plan.model_copy(update={"seed": 4}), ako.artifacts.get)


@pytest.mark.parametrize(
    "event",
    [Noted(99), Noted(Kind.STREAM_ENDED, edge=0, node=0), Noted(Kind.STREAM_ENDED, edge=999, node=1),
     Noted(Kind.CREDIT_GRANTED, edge=999, node=1), Noted(Kind.NODE_LEFT, node=3)],
)  # fmt: skip
def test_replay_of_an_event_that_the_plan_does_not_have_is_refused(ako: SimRun, event: Noted) -> None:
    with pytest.raises(DataError, match="the record has an event"):
        replay(ako.plan, changed(ako.artifacts, 0, lambda events: events.insert(1, event)).get)


def test_replay_without_a_record_is_refused(ako: SimRun) -> None:
    with pytest.raises(DataError, match=r"the run was not recorded.*run it with --record"):
        replay(ako.plan, {}.get)


def test_replay_of_a_plan_that_is_none_is_refused() -> None:
    with pytest.raises(DataError, match=r"the plan of the record cannot be read.* at events/plan.json"):
        recorded_plan({recording.PLAN_FILE: b"{}"}.get)


def test_compare_of_another_model_names_the_file(ako: SimRun) -> None:
    replayed = replay(ako.plan, ako.artifacts.get)
    kept = {**ako.artifacts, "model.safetensors": ako.artifacts["model.safetensors"][:-1] + b"x"}
    assert compare(replayed, kept.get, reports(replayed)) == Difference("model.safetensors differs")
    del kept["model.safetensors"]
    assert compare(replayed, kept.get, reports(replayed)) == Difference("the run has no model.safetensors")


def test_compare_of_other_reports_names_the_first(ako: SimRun) -> None:
    replayed = replay(ako.plan, ako.artifacts.get)
    said = reports(replayed)
    other = [{**report} for report in said]
    other[0]["loss"] = 7.0
    found = compare(replayed, ako.artifacts.get, other)
    assert found is not None
    assert found.what.startswith("report 0 of node-0 was {")
    assert compare(replayed, ako.artifacts.get, said[:-1]) == Difference(
        f"node-0 made {len(said) - 1} reports, and {len(said)} in the replay"
    )


def test_progress_of_a_replay_ends_with_all_events(ako: SimRun) -> None:
    told: list[int] = []
    replayed = replay(ako.plan, ako.artifacts.get, told.append)
    assert told[-1] == sum(replayed.events)
    assert told == sorted(told)
