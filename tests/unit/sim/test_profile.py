"""Mean times of tasks: as given, as measured with a clock that ticks, and what is filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ako_jobs.jobs import load_job, prepare
from ako_jobs.simulate import execute_simulation, prepare_simulation
from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Message, Tick
from dataflow.operators_api import Emissions, Operator
from dataflow.plan.job import JobSpec
from dataflow.ports import Out
from dataflow.sim.costs import TaskKind
from dataflow.sim.model import ClusterModel
from dataflow.sim.profile import Profile, profile_job, variation, with_steps


class TickingClock:
    """Each look at it is a millisecond after the last."""

    def __init__(self) -> None:
        self._looks = 0

    def now(self) -> float:
        self._looks += 1
        return self._looks / 1000

    def wall(self) -> float:
        return 0.0

    def sleep(self, duration_s: float) -> None:
        raise AssertionError


def costly(nbytes: int) -> tuple[float, float]:
    """What a message costs: a millisecond, and another for what it holds."""
    return 0.001, 0.001 / nbytes


def unasked(nbytes: int) -> tuple[float, float]:
    raise AssertionError(nbytes)


def spec(job: str, nodes: int, **settings: Any) -> JobSpec:
    return prepare(load_job(job), {"epochs": 2, "phantom": True, **settings}, nodes).spec


@pytest.mark.parametrize(("tasks", "shard_s"), [(1, 0.012), (2, 0.006), (4, 0.003)])
def test_task_means_as_given_divide_a_step_among_its_shards(tasks: int, shard_s: float) -> None:
    model = ClusterModel(compute="constant", step_s=0.012, tasks=tasks)
    given = {
        TaskKind("compute", role, first): seconds
        for role, seconds in (("step", 0.012), ("shard", shard_s))
        for first in (True, False)
    }
    assert profile_job(spec("ako", 4), model, TickingClock(), unasked) == Profile(given, engine_s=0.0)


@pytest.mark.parametrize(
    ("job", "nodes", "settings"),
    [
        ("ako", 1, {}),
        ("ako", 4, {"p": 3}),
        ("all_to_all", 16, {}),
        ("parameter_server", 2, {"servers": 1}),
        ("parameter_server", 16, {"servers": 4}),
        ("parameter_server", 4, {"servers": "all"}),
    ],
)
def test_task_means_as_measured_have_a_gradient_of_every_worker(job: str, nodes: int, settings: dict[str, Any]) -> None:
    """Every task takes one tick, a step of one shard and a merge that was not seen as one task two."""
    means = profile_job(spec(job, nodes, **settings), ClusterModel(), TickingClock(), costly).means
    workers = 1 if job == "parameter_server" and nodes == 2 else nodes
    for first in [True, False] if workers > 1 else [True]:
        assert means[TaskKind("compute", "shard", first)] == pytest.approx(0.001)
        assert means[TaskKind("compute", "step", first)] == pytest.approx(0.001 if nodes == 1 else 0.002)
        assert means[TaskKind("source", "message", first)] == pytest.approx(0.001)


@dataclass(frozen=True, slots=True)
class Count(Message):
    """A number."""

    n: int


class Endless(Operator):
    """A source that only ends if it is asked to; far too late, it fails."""

    source = True
    counts = Out(Count)

    def process(self, tick: Tick) -> Emissions:
        assert tick.step < 30_000, "nobody has asked it"
        yield self.counts(Count(tick.step))


def test_task_means_of_a_job_without_gradients_and_without_an_end_are_measured() -> None:
    graph = LogicalGraph(name="endless").with_role("worker").with_operator("endless", Endless(), role="worker")
    profile = profile_job(JobSpec(name="endless", graph=graph, nodes=1), ClusterModel(), TickingClock(), unasked)
    assert profile.means[TaskKind("endless", "message", True)] == pytest.approx(0.001)


def test_task_means_of_drawn_gradients_are_those_of_gradients_alone() -> None:
    profile = profile_job(spec("ako", 4), ClusterModel(compute="gamma"), TickingClock(), unasked)
    assert {(kind.chain, kind.role) for kind in profile.means} == {("compute", "step"), ("compute", "shard")}
    assert (profile.engine_s, profile.message_s, profile.byte_s) == (0, 0, 0)


class HaltingClock:
    """A look takes 1 ms; every thousandth, as if another process had the processor, a second."""

    def __init__(self) -> None:
        self._looks, self._now_s = 0, 0.0

    def now(self) -> float:
        self._looks += 1
        self._now_s += 0.001 if self._looks % 1000 else 1.0
        return self._now_s

    def wall(self) -> float:
        return 0.0

    def sleep(self, duration_s: float) -> None:
        raise AssertionError


@pytest.mark.parametrize("clock", [TickingClock(), HaltingClock()])
def test_profile_engine_takes_what_lies_between_two_tasks(clock: TickingClock | HaltingClock) -> None:
    assert profile_job(spec("ako", 2), ClusterModel(), clock, costly).engine_s == pytest.approx(0.001)


def test_simulation_of_measured_tasks_has_the_engine_s_of_its_profile_unless_its_model_says_otherwise() -> None:
    job, settings = load_job("ako"), {"epochs": 1}
    measured = prepare_simulation(job, settings, 1, ClusterModel(), clock=TickingClock())
    assert measured.model.engine_s == pytest.approx(0.001)
    said = prepare_simulation(job, settings, 1, ClusterModel(engine_s=0.0), clock=TickingClock())
    assert said.model.engine_s == 0


def test_profile_messages_cost_what_is_measured_for_their_mean_size() -> None:
    """Of all-to-all, each of which is a gradient: of all the images' network, whose size phantoms stand for."""
    job = spec("all_to_all", 3)
    nbytes = 4 * job.graph.tensor_scale * int(job.graph.operator("apply").params.rpartition("]")[0].rpartition(",")[2])
    asked: list[int] = []

    def measure(size: int) -> tuple[float, float]:
        asked.append(size)
        return costly(size)

    profile = profile_job(job, ClusterModel(), TickingClock(), measure)
    (size,) = asked
    assert size == pytest.approx(nbytes, rel=0.1)
    assert (profile.message_s, profile.byte_s) == costly(size)


def test_simulation_has_the_message_costs_of_its_profile_unless_its_model_says_otherwise() -> None:
    job, settings = load_job("ako"), {"epochs": 1}
    measured = prepare_simulation(
        job, settings, 2, ClusterModel(byte_s=0.5), clock=TickingClock(), measure_messages=costly
    )
    assert (measured.model.message_s, measured.model.byte_s, measured.model.variation) == (0.001, 0.5, 0.0)


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.3])
def test_variation_is_that_of_steps_whatever_their_means_and_whatever_else_took_the_processor(spread: float) -> None:
    rng = np.random.default_rng(0)
    drawn = {
        TaskKind("compute", "step", first): [9.0, *(mean * rng.normal(1.0, spread, 400)), 50 * mean, 60 * mean]
        for first, mean in ((True, 0.003), (False, 0.001))
    }
    others = {TaskKind("validate", "message", True): [1.0, 2.0, 3.0]}
    assert variation(drawn | others, ["compute"]) == pytest.approx(spread, rel=0.15, abs=1e-9)


@pytest.mark.parametrize("times", [[], [1.0], [1.0, 2.0], [1.0, 0.0, 0.0, 0.0]])
def test_variation_is_none_where_steps_are_too_few_or_too_short_to_be_measured(times: list[float]) -> None:
    assert variation({TaskKind("compute", "step", True): times}, ["compute"]) == 0


def test_nodes_of_a_simulation_make_gradients_at_a_pace_of_their_own_if_these_vary() -> None:
    """Else all push at once, for ever."""
    job, settings = load_job("ako"), {"epochs": 1}

    def seconds(variation: float) -> set[float]:
        model = ClusterModel(variation=variation, message_s=0.0, byte_s=0.0)
        simulation = prepare_simulation(job, settings, 4, model, clock=TickingClock())
        return {node["computing_s"] / node["steps"] for node in execute_simulation(simulation).record["nodes"]}

    assert len(seconds(0.0)) == 2  # of those that validate, and of the others
    assert len(seconds(0.05)) == 4


def test_with_steps_gives_a_step_the_time_of_its_shard_and_its_merge() -> None:
    shard, merge, step = (TaskKind("compute", role, True) for role in ("shard", "merge", "step"))
    other = TaskKind("validate", "message", True)
    assert with_steps({shard: 3.0, merge: 1.0, other: 7.0}, ["compute"]) == {
        shard: 3.0,
        merge: 1.0,
        step: 4.0,
        other: 7.0,
    }
    assert with_steps({step: 4.0}, ["compute"]) == {step: 4.0, shard: 4.0}
    assert with_steps({step: 5.0, shard: 3.0}, ["compute"]) == {step: 5.0, shard: 3.0}
    assert with_steps({other: 7.0}, ["compute"]) == {other: 7.0}


def test_phantom_without_a_time_for_its_gradients_is_refused() -> None:
    with pytest.raises(ConfigError, match="--step-time 5ms"):
        prepare_simulation(load_job("ako"), {"phantom": True}, 2, ClusterModel(compute="gamma"))
