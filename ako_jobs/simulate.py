"""Simulate a job: what ``ako run --sim`` does, as a call."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import JsonValue

from ako_jobs.jobs import Job, Prepared, load_job, prepare
from ako_jobs.result_folder import check_folder, held_folder
from ako_jobs.run import Heard, OnEvent, Result, keep
from dataflow import (
    Clock,
    ClusterModel,
    JobEvent,
    JobState,
    Profile,
    SimRun,
    Simulator,
    SystemClock,
    TaskKind,
    as_simulated,
    installed_versions,
    make_record,
    measure_connection,
    profile_job,
)
from dataflow.errors import ConfigError, JobFailedError

_STATISTICS_GRADIENTS = 16
"""Gradients of a node between two statistics, and between two measurements at most: enough to see how a short run
goes, and little of its work."""


@dataclass(frozen=True)
class Simulation:
    """A job that is ready to be simulated: on which cluster, and the mean seconds of its tasks.

    One that failed while these were measured is not simulated any more: `failure` is what became of it.
    """

    prepared: Prepared
    model: ClusterModel
    means: Mapping[TaskKind, float]
    failure: JobFailedError | None = None

    def recorded(self) -> Simulation:
        """The same simulation, which can be replayed."""
        return replace(self, prepared=self.prepared.recorded())


def simulate(
    job: str | Job,
    settings: Mapping[str, Any] | None = None,
    *,
    nodes: int = 4,
    model: ClusterModel | None = None,
    out: str | Path | None = None,
    record: bool = False,
    on_event: OnEvent | None = None,
) -> Result:
    """Simulate a job and return what became of it.

    Args:
        job: what `load_job` takes, or a `Job`.
        settings: values by key.
        nodes: how many nodes it runs on.
        model: the cluster; by default a `ClusterModel` as it comes.
        out: folder for what it makes; see `ako_jobs.run.keep`.
        record: let the run be replayed from `out`.
        on_event: called with each event.

    Raises:
        AkoError: the job could not be started. One that fails later is returned, with state FAILED.
    """
    if out is not None:
        check_folder(out)
    simulation = prepare_simulation(
        load_job(job) if isinstance(job, str) else job, settings or {}, nodes, model or ClusterModel()
    )
    return execute_simulation(simulation.recorded() if record else simulation, out=out, on_event=on_event)


def prepare_simulation(
    job: Job,
    settings: Mapping[str, Any],
    nodes: int,
    model: ClusterModel,
    clock: Clock | None = None,
    profile: Profile | None = None,
    measure_messages: Callable[[int], tuple[float, float]] = measure_connection,
) -> Simulation:
    """Configure, build and check a job, and find out how long its tasks, the engine between them, and messages take.

    Nodes tell their statistics each time that they have had time for some gradients, unless the model says when.

    Args:
        job: the job.
        settings: values by key.
        nodes: how many nodes it runs on.
        model: the cluster.
        clock: what tasks are measured with.
        profile: how long they take, where that is known from a simulation of the same job; else it is measured.
        measure_messages: measures what messages of about so many bytes cost; see `dataflow.profile_job`.

    Raises:
        AkoError: as for `prepare`, or the model is not one of so many nodes, or nothing could be measured. A job that
            fails meanwhile is returned, with its `failure`.
    """
    prepared = prepare(job, settings, nodes)
    as_simulated(prepared.spec, model)
    check_takes_time(prepared, model)
    try:
        profile = profile or profile_job(prepared.spec, model, clock or SystemClock(), measure_messages)
    except JobFailedError as failure:
        return Simulation(prepared, model, {}, failure)
    costs = {key: getattr(profile, key) for key in Profile.COSTS}
    model = model.model_copy(update={key: costs[key] for key in costs.keys() - model.model_fields_set})
    often_s = _STATISTICS_GRADIENTS * _gradient_s(profile.means, model)
    if "statistics_s" not in model.model_fields_set:
        model = model.model_copy(update={"statistics_s": often_s})
    return Simulation(prepared, model, profile.means)


def check_takes_time(prepared: Prepared, model: ClusterModel) -> None:
    """Refuse a job that would go on for ever at second 0, or whose gradients' time nobody can know.

    Raises:
        ConfigError: only gradients take time, and the job makes none; or they are a phantom's, and no time is given.
    """
    if prepared.spec.graph.tensor_scale != 1 and model.step_s is None:
        what = "a phantom computes nothing whose time could be measured"
        raise ConfigError(what, fix="say how long a gradient takes, as in --step-time 5ms")
    if model.compute != "measured" and not any(operator.gather for operator in prepared.spec.graph.operators):
        what = f"nothing would take time: {prepared.spec.name} makes no gradients, which alone do"
        raise ConfigError(what, got=f"compute={model.compute}", fix="use compute=measured, without a step time")


def execute_simulation(
    simulation: Simulation, *, out: str | Path | None = None, on_event: OnEvent | None = None
) -> Result:
    """Simulate a prepared job. A first Ctrl-C cancels it, and what it made until then is returned."""
    with held_folder(out) as folder:
        result = _simulated(simulation, on_event)
        if folder is not None:
            keep(result, simulation.prepared, folder)
        return result


def _simulated(simulation: Simulation, on_event: OnEvent | None) -> Result:
    prepared, heard = simulation.prepared, Heard(on_event)
    simulator = Simulator(prepared.spec, simulation.model, simulation.means, heard.handle)
    with _on_interrupt(simulator.cancel) as interrupted:
        run = (
            simulator.run() if simulation.failure is None else _failed(simulation.failure, simulator.run_so_far, heard)
        )
    for each in run.statistics:
        heard.series.add(run.elapsed_s, each)
    heard.series.close()
    return Result(
        job="simulated",
        state=run.state,
        reason=run.reason,
        stopped_by=run.stopped_by,
        record=make_record(
            prepared.spec,
            heard.events,
            run.statistics,
            installed_versions(),
            node_names=[node.name for node in run.plan.nodes],
            earlier=heard.series.newest.earlier(run.statistics),
            series=heard.series.points,
            simulation=_assumed(simulation),
        ),
        artifacts=run.artifacts,
        log=() if run.error is None else tuple("".join(traceback.format_exception(run.error)).splitlines()),
        interrupted=bool(interrupted),
    )


def _failed(failure: JobFailedError, run: SimRun, heard: Heard) -> SimRun:
    """The run of a job that has failed before it was simulated."""
    heard.handle(JobEvent(0, 0.0, 0.0, state=JobState.FAILED, reason=failure.what))
    run.state, run.reason, run.error = JobState.FAILED, failure.what, failure
    return run


def _gradient_s(means: Mapping[TaskKind, float], model: ClusterModel) -> float:
    """Seconds of a node's gradient: those of its longest task of a step; a second if the job makes none."""
    steps = (seconds for kind, seconds in means.items() if kind.role in ("step", "shard"))
    return model.step_s or max(steps, default=1.0)


def _assumed(simulation: Simulation) -> dict[str, JsonValue]:
    """What a simulation rests on, for its record: with it, the same run can be made again."""
    model: dict[str, JsonValue] = simulation.model.model_dump(mode="json")
    return model | {"task_s": [[*kind, seconds] for kind, seconds in sorted(simulation.means.items())]}


@contextmanager
def _on_interrupt(cancel: Callable[[], None]) -> Iterator[list[int]]:
    """Let the first Ctrl-C call `cancel`, and note it; a second one is as ever."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        signal.signal(signal.SIGINT, before)
        cancel()

    signal.signal(signal.SIGINT, handle)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
