"""How long tasks of a job, and the engine between them, take: as given, or as measured in a short run of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, median, quantiles
from typing import ClassVar

from dataflow.clock import Clock
from dataflow.engine.events import Outcome, Task
from dataflow.errors import JobFailedError, PlanError
from dataflow.plan.compile import chains
from dataflow.plan.job import JobSpec
from dataflow.plan.placement import place
from dataflow.sim.costs import TaskKind, first_nodes
from dataflow.sim.model import ClusterModel
from dataflow.sim.simulator import Simulator

_STEPS = 48
"""Gradients after which the short run is stopped, over all its nodes."""

_TASKS = 20_000
"""Tasks after which it is stopped in any case: a job need not have gradients, nor an end."""

_NODES = 4
"""Nodes that it has at least, if the job has as many."""

_MEMBERS = 2
"""Members that each role has then at least, if it has as many: what the first does, the others may not do."""

_GROUP = 16
"""Tasks over which the engine's time is averaged: some start others, so one alone says little."""

_NORMAL_QUARTILES = 1.349
"""What lies between the quartiles of a normal distribution, in standard deviations."""


@dataclass(frozen=True)
class Profile:
    """How long what the nodes of a job do takes.

    Args:
        means: seconds by kind of task; kinds that are not there take no time.
        engine_s: seconds that a node's engine takes for each task, besides the task's own; see `ClusterModel`.
        message_s: seconds that a node takes for each message that it sends or receives,
        byte_s: and for each of its bytes.
        variation: coefficient of variation of a gradient's seconds.

    Class attributes:
        COSTS: what of it is part of a `ClusterModel`, under the same names.
    """

    COSTS: ClassVar = ("engine_s", "message_s", "byte_s", "variation")
    means: Mapping[TaskKind, float]
    engine_s: float = 0.0
    message_s: float = 0.0
    byte_s: float = 0.0
    variation: float = 0.0


MeasureMessages = Callable[[int], tuple[float, float]]
"""Gives the seconds that a node takes to send or receive a message, and those for each of its bytes, for messages of
about so many bytes."""


def profile_job(spec: JobSpec, model: ClusterModel, clock: Clock, measure_messages: MeasureMessages) -> Profile:
    """How long what takes time in a simulation of a job takes; engine and messages do only where tasks are measured.

    Args:
        spec: the job.
        model: says whether they are measured, and of which.
        clock: what is measured with.
        measure_messages: measures what messages of a size cost; asked only if the job's nodes send each other some.

    Raises:
        AkoError: an operator cannot be made or opened; of these a `JobFailedError` if it fails later.
    """
    gathering = {chain.head for chain in chains(spec.graph) if spec.graph.operator(chain.operators[-1]).gather}
    gradients = {TaskKind(*kind) for kind in product(sorted(gathering), ("step", "shard"), (True, False))}
    if model.step_s is not None:
        return Profile({kind: model.step_s / (model.tasks if kind.role == "shard" else 1) for kind in gradients})
    measured, nbytes = _measured(spec, model.tasks, gathering, clock)
    if model.compute != "measured":
        return Profile({kind: seconds for kind, seconds in measured.means.items() if kind in gradients})
    if not nbytes:
        return measured
    message_s, byte_s = measure_messages(nbytes)
    return replace(measured, message_s=message_s, byte_s=byte_s)


def with_steps(means: Mapping[TaskKind, float], gathering: Iterable[str]) -> dict[TaskKind, float]:
    """Means to which steps in one task, or in several, have been added where only the others are there.

    Which of the two a step of one shard is depends on who else is at work (see `NodeEngine`): a run may meet what a
    short one does not.

    Args:
        means: seconds by kind.
        gathering: chains that have steps.
    """
    known = dict(means)
    for chain, first in product(gathering, (True, False)):
        step, shard, merge = (TaskKind(chain, role, first) for role in ("step", "shard", "merge"))
        if step in known:
            known.setdefault(shard, known[step])
        elif shard in known:
            known[step] = known[shard] + known.get(merge, 0.0)
    return known


def on_all_nodes(means: Mapping[TaskKind, float]) -> dict[TaskKind, float]:
    """Means to which tasks have been added that the short run saw on the first node of a role only, or on others only.

    What only one node did, such as putting validations together, may come to the others later.
    """
    return {kind._replace(first=not kind.first): seconds for kind, seconds in means.items()} | dict(means)


def variation(seconds: Mapping[TaskKind, Sequence[float]], gathering: Iterable[str]) -> float:
    """Coefficient of variation of the times of steps, by their quartiles: what other processes took is no part of it.

    Without any, nodes that have met once on a link would meet there for ever.

    Args:
        seconds: by kind of task.
        gathering: chains that have steps.
    """
    chains = set(gathering)
    of_steps = [times[1:] for kind, times in seconds.items() if kind.chain in chains and kind.role in ("step", "shard")]
    relative = [each / median(times) for times in of_steps if len(times) > 1 and median(times) > 0 for each in times]
    if len(relative) < 2:
        return 0.0
    low, _, high = quantiles(relative, n=4)
    return min(1.0, (high - low) / _NORMAL_QUARTILES)


def _measured(spec: JobSpec, tasks: int, gathering: set[str], clock: Clock) -> tuple[Profile, int]:
    """How long tasks and engine take, and how large messages between nodes are on average, 0 if there are none."""
    model = ClusterModel(compute="constant", tasks=tasks, rate=1e15, latency_s=0.0)
    watch = _Stopwatch(clock, gathering)
    simulator = Simulator(_smaller(spec), model, {}, perform=watch.perform)
    watch.first, watch.enough = first_nodes(simulator.run_so_far.plan), simulator.cancel
    run = simulator.run()
    if not watch.seconds or run.state == "FAILED":
        raise JobFailedError(what=run.reason or "the job did nothing that could be measured") from run.error
    means = {kind: median(times[1:] or times) for kind, times in watch.seconds.items()}
    known = on_all_nodes(with_steps(means, gathering))
    profile = Profile(dict(sorted(known.items())), watch.engine_s(), variation=variation(watch.seconds, gathering))
    sent_nbytes = sum(sum(each.sent_nbytes.values()) for each in run.statistics)
    return profile, sent_nbytes // run.messages if run.messages else 0


def _smaller(spec: JobSpec) -> JobSpec:
    """The job on a few nodes, if it can be placed on them: what its tasks do is much the same."""
    wanted = {role: min(_MEMBERS, len(members)) for role, members in place(spec.graph, spec.nodes).items()}
    for nodes in range(min(_NODES, spec.nodes), spec.nodes):
        try:
            placed = place(spec.graph, nodes)
        except PlanError:
            continue
        if all(len(placed[role]) >= least for role, least in wanted.items()):
            return spec.model_copy(update={"nodes": nodes})
    return spec


class _Stopwatch:
    """Runs tasks and notes how long they, and what lies between them, take; says once it has seen enough."""

    def __init__(self, clock: Clock, gathering: set[str]) -> None:
        self.seconds: dict[TaskKind, list[float]] = {}
        self.first: Mapping[str, int] = {}
        self.enough: Callable[[], None] = lambda: None
        self._clock, self._gathering, self._steps, self._tasks = clock, gathering, 0, 0
        self._between: list[float] = []
        self._ended_s: float | None = None

    def perform(self, node: int, task: Task) -> Outcome:
        """What running a task gives."""
        begin = self._clock.now()
        if self._ended_s is not None:
            self._between.append(begin - self._ended_s)
        outcome = task.run()
        kind = TaskKind(task.chain, task.role, self.first[task.chain] == node)
        self._ended_s = self._clock.now()
        self.seconds.setdefault(kind, []).append(self._ended_s - begin)
        if task.chain in self._gathering and task.role in ("step", "merge"):
            self._steps += 1
        self._tasks += 1
        if self._steps == _STEPS or self._tasks == _TASKS:
            self.enough()
            self.enough = lambda: None
        return outcome

    def engine_s(self) -> float:
        """Seconds between two tasks: of a few in a row the mean, of many such the median."""
        groups = [self._between[at : at + _GROUP] for at in range(0, len(self._between), _GROUP)]
        return median(map(fmean, groups)) if groups else 0.0
