"""How long the tasks of a job take: as given, or as measured on this machine in a short run of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from statistics import median

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


def task_means(spec: JobSpec, model: ClusterModel, clock: Clock) -> dict[TaskKind, float]:
    """Mean seconds of each kind of task that takes time in a simulation of a job.

    Args:
        spec: the job.
        model: says whether they are measured, and of which.
        clock: what is measured with.

    Raises:
        AkoError: an operator cannot be made or opened, or fails.
    """
    gathering = {chain.head for chain in chains(spec.graph) if spec.graph.operator(chain.operators[-1]).gather}
    gradients = {TaskKind(*kind) for kind in product(sorted(gathering), ("step", "shard"), (True, False))}
    if model.step_s is not None:
        return {kind: model.step_s / (model.tasks if kind.role == "shard" else 1) for kind in gradients}
    measured = _measured(spec, model.tasks, gathering, clock)
    if model.compute == "measured":
        return measured
    return {kind: seconds for kind, seconds in measured.items() if kind in gradients}


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


def _measured(spec: JobSpec, tasks: int, gathering: set[str], clock: Clock) -> dict[TaskKind, float]:
    model = ClusterModel(compute="constant", tasks=tasks, rate=1e15, latency_s=0.0)
    watch = _Stopwatch(clock, gathering)
    simulator = Simulator(_smaller(spec), model, {}, perform=watch.perform)
    watch.first, watch.enough = first_nodes(simulator.run_so_far.plan), simulator.cancel
    run = simulator.run()
    if not watch.seconds or run.state == "FAILED":
        raise JobFailedError(what=f"the job failed while its tasks were measured: {run.reason}")
    means = {kind: median(times[1:] or times) for kind, times in watch.seconds.items()}
    return dict(sorted(with_steps(means, gathering).items()))


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
    """Runs tasks and notes how long they take; says once it has seen enough."""

    def __init__(self, clock: Clock, gathering: set[str]) -> None:
        self.seconds: dict[TaskKind, list[float]] = {}
        self.first: Mapping[str, int] = {}
        self.enough: Callable[[], None] = lambda: None
        self._clock, self._gathering, self._steps, self._tasks = clock, gathering, 0, 0

    def perform(self, node: int, task: Task) -> Outcome:
        """What running a task gives."""
        begin = self._clock.now()
        outcome = task.run()
        kind = TaskKind(task.chain, task.role, self.first[task.chain] == node)
        self.seconds.setdefault(kind, []).append(self._clock.now() - begin)
        if task.chain in self._gathering and task.role in ("step", "merge"):
            self._steps += 1
        self._tasks += 1
        if self._steps == _STEPS or self._tasks == _TASKS:
            self.enough()
            self.enough = lambda: None
        return outcome
