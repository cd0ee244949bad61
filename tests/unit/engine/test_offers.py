"""Steps that are offered behind the one under way, and whoever takes them up or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_rig import Collect, Count, LogState, NetNote, Piece, Pieces, Rig, graph_of, nodes_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_gather import CollectArrived, NetCount, SendPiece, Watch

from dataflow.engine import memory_driver
from dataflow.engine.events import Failed, NodeLeft, Offer, RunTask, TaskFinished
from dataflow.engine.loading import LoadedNode
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.engine.recording import Chunk, Kind, RecordedEngine, chunk_name, pack
from dataflow.graph.routes import Route
from dataflow.operators_api import Emissions
from dataflow.plan.physical import PhysicalPlan
from dataflow.sim.replay import replay


class Once(Collect):
    """Collects one step and no more."""

    def ready(self, log: LogState) -> bool:
        return not log.items


class FailsLater(Collect):
    """Raises at its second step."""

    def merge(self, parts: list[tuple[float, int]], log: LogState) -> Emissions:
        if log.items:
            what = "the second"
            raise ValueError(what)
        yield from super().merge(parts, log)


class OfferRig(Rig):
    """A rig that takes up offers when it is told to."""

    def offers(self) -> list[Offer]:
        return [command for command in self.commands if isinstance(command, Offer)]

    def follow(self) -> Offer:
        """End the task behind which a task was offered last, with that one started at once."""
        offer = self.offers()[-1]
        self.tasks.remove(offer.behind)
        outcome = offer.behind.run()
        assert offer.ready()
        self.tasks.append(offer.task)
        self.give(TaskFinished(offer.behind, outcome, followed=True))
        return offer


def collecting(limit: int = 4, collect: Collect | None = None, tasks: int = 1) -> OfferRig:
    """pieces -> collect(log) -> note(elsewhere), with all pieces read that the inbox has room for."""
    graph = graph_of(
        {"pieces": Pieces(limit=limit), "collect": collect or Collect(), "note": NetNote()},
        [("pieces", "collect"), ("collect", "note")],
        ["log", "elsewhere", "gate"],
        note={"log": "elsewhere"},
    )
    rig = OfferRig(nodes_of(graph, compute_tasks=tasks))
    rig.start()
    rig.finish_chain("pieces")
    return rig


def test_next_step_is_offered_behind_the_one_under_way_as_soon_as_it_is_there() -> None:
    graph = graph_of({"pieces": Pieces(limit=2), "collect": Collect()}, [("pieces", "collect")], ["log"])
    rig = OfferRig(nodes_of(graph))
    rig.start()
    rig.finish_one("pieces")
    (step,) = (task for task in rig.tasks if task.chain == "collect")
    assert rig.offers() == []
    rig.finish_one("pieces")
    (offer,) = rig.offers()
    assert (offer.behind, offer.task.chain, offer.task.role) == (step, "collect", "step")


def test_step_that_followed_another_sees_its_merge_and_both_are_committed_once() -> None:
    rig = collecting(limit=2)
    offer = rig.follow()
    assert rig.running() == ["note", "collect"] or rig.running() == ["collect", "note"]
    assert [command for command in rig.commands if isinstance(command, RunTask) and command.task is offer.task] == []
    rig.finish_all()
    assert rig.log() == [((0.0, 0),), ((10.0, 1),)]
    assert rig.log("elsewhere") == [(0, 1), (0, 1), "end"]
    assert rig.engine.statistics().steps == 2


def test_offer_that_was_left_alone_is_started_by_the_engine() -> None:
    rig = collecting(limit=2)
    (offer,) = rig.offers()
    rig.finish(offer.behind)
    (step,) = (task for task in rig.tasks if task.chain == "collect")
    assert step is not offer.task
    rig.finish_all()
    assert rig.log() == [((0.0, 0),), ((10.0, 1),)]


def test_every_step_of_a_row_can_follow_the_one_before() -> None:
    rig = collecting(limit=6)
    for _ in range(5):
        rig.follow()
        rig.finish_chain("note")
    rig.finish_all()
    assert rig.log() == [((10.0 * step, step),) for step in range(6)]


def test_what_is_offered_does_not_start_while_its_gate_is_shut() -> None:
    rig = collecting(collect=Once())
    (offer,) = rig.offers()
    rig.tasks.remove(offer.behind)
    outcome = offer.behind.run()
    assert not offer.ready()
    rig.give(TaskFinished(offer.behind, outcome))
    assert "collect" not in rig.running()


def test_nothing_is_offered_while_a_reader_waits_for_what_the_step_holds() -> None:
    graph = graph_of(
        {"pieces": Pieces(limit=8), "collect": Collect(), "count": NetCount(limit=1), "watch": Watch()},
        [("pieces", "collect"), ("count", "watch")],
        ["log", "seen"],
    )
    rig = OfferRig(nodes_of(graph, network_tasks=2))
    rig.start()
    rig.finish_chain("pieces")
    before = len(rig.offers())
    assert before > 0
    rig.finish_one("count")  # from now on the reader waits
    rig.follow()
    assert len(rig.offers()) == before
    rig.finish_one("collect")
    assert "watch" in rig.running()
    rig.finish_one("watch")
    assert rig.log("seen") == [2]  # one step later than without the offer


def test_nothing_is_offered_ahead_of_what_is_due_for_a_node_that_left() -> None:
    graph = graph_of(
        {"pieces": Pieces(limit=0), "send": SendPiece(), "collect": CollectArrived()},
        [("send", "collect", Route.ONE_TO_ALL), ("pieces", "send")],
        ["log"],
    )
    rig = OfferRig(nodes_of(graph, 3))
    rig.start()
    rig.finish_all()
    for step in range(4):
        rig.arrive(Piece(step, 0, 1, float(step)), source=2)
    rig.give(NodeLeft(1))
    rig.follow()  # offered before the node left
    assert [offer.task for offer in rig.offers() if offer.behind in rig.tasks] == []
    rig.finish_all()
    assert rig.log() == [((0.0, 0),), ((1.0, 1),), "left 1", ((2.0, 3),), ((3.0, 4),)]


def test_nothing_is_offered_for_whose_messages_there_may_be_no_room() -> None:
    rig = collecting(limit=8)
    rig.follow()  # one message more for the note, whose port has room for two
    rig.finish_one("collect")
    assert rig.log("elsewhere") == []
    assert [offer.task for offer in rig.offers() if offer.behind in rig.tasks] == []


def test_nothing_is_offered_with_several_shards() -> None:
    assert collecting(tasks=2).offers() == []


def test_nothing_is_offered_while_others_write_what_the_step_needs() -> None:
    graph = graph_of(
        {"pieces": Pieces(limit=4), "collect": Collect(), "count": Count(limit=3), "note": NetNote()},
        [("pieces", "collect"), ("count", "note")],
        ["log"],
    )
    rig = OfferRig(nodes_of(graph))
    rig.start()
    rig.finish_chain("pieces")
    assert rig.offers() == []


def test_failure_of_a_step_that_followed_another_is_the_failure_of_the_node() -> None:
    rig = collecting(collect=FailsLater())
    offer = rig.follow()
    rig.finish(offer.task)
    assert isinstance(rig.commands[-1], Failed)
    assert "the second" in str(rig.failure())


def one_node(limit: int, log: str = "log") -> PhysicalPlan:
    """Steps of one task, and a reader that is told of each; of `log`, which may be what they write."""
    graph = graph_of(
        {"pieces": Pieces(limit=limit), "collect": Collect(), "watch": Watch()},
        [("pieces", "collect"), ("collect", "watch")],
        ["log", "elsewhere", "seen"],
        watch={"log": log},
    )
    return nodes_of(graph, network_tasks=2)


def logs(run: memory_driver.MemoryRun) -> tuple[list[object], int]:
    """Of the writer, and how often the reader has seen it."""
    states = run.nodes[0].states
    return states["log"].items, len(states["seen"].items)  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None)
@given(limit=st.integers(1, 20), log=st.sampled_from(["log", "elsewhere"]), seed=st.integers(0, 2**32))
def test_whether_offers_are_taken_up_makes_no_difference_to_the_state(limit: int, log: str, seed: int) -> None:
    plan = one_node(limit, log)
    run = MemoryDriver(plan, order=np.random.default_rng(seed)).execute()
    assert logs(run) == (logs(MemoryDriver(plan).execute())[0], limit)


def recorded(plan: PhysicalPlan, node: int, loaded: LoadedNode) -> RecordedEngine:
    return RecordedEngine(plan, node, loaded, digest=plan.digest())


def test_replay_of_a_run_with_followers_is_identical(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = one_node(40, "elsewhere")
    monkeypatch.setattr(memory_driver, "NodeEngine", recorded)
    run = MemoryDriver(plan, order=np.random.default_rng(5)).execute()
    events = list(Chunk.decode(run.artifacts[chunk_name(0, 0)]).events())
    followed = sum(event.followed for event in events if event.kind == Kind.TASK_FINISHED)
    assert 0 < followed < 39
    replayed = replay(plan, run.artifacts.get)
    assert replayed.complete
    states, again = run.nodes[0].states, replayed.nodes[0].states
    assert [again[name].items for name in states] == [states[name].items for name in states]  # type: ignore[attr-defined]


def test_replay_of_a_follower_that_was_never_offered_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = one_node(3)
    monkeypatch.setattr(memory_driver, "NodeEngine", recorded)
    artifacts = MemoryDriver(plan).execute().artifacts
    chunk = Chunk.decode(artifacts[chunk_name(0, 0)])
    events = list(chunk.events())
    source = next(number for number, event in enumerate(events) if event.kind == Kind.TASK_FINISHED)
    events[source] = events[source]._replace(followed=1)
    artifacts[chunk_name(0, 0)] = replace(chunk, packed=b"".join(map(pack, events))).encode()
    difference = replay(plan, artifacts.get).difference
    assert difference is not None
    assert "which is not offered in the replay" in difference.what
