"""Jobs: a graph with how many nodes it wants and when it stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.specs import ElementSpec
from dataflow.operators_api import WATCHDOG_S
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from dataflow.state import PARTS_OF_A_WHOLE, StateKind


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StopRules(_Data):
    """When the coordinator stops a job whose sources could go on.

    Args:
        report: ``operator.port`` of the reported port that is watched; empty if nothing is. What nodes report is one
            series, as it comes in: they may take turns.
        metric: numeric field of its messages; higher is better.
        target: stop once `metric` is at least this much `hold` times in a row.
        hold: see `target`.
        patience: stop after so many reports in a row without a new best of `patience_metric`.
        patience_metric: numeric field that patience watches; `metric` if empty.
        time_s: stop so many seconds after the start.
    """

    report: str = ""
    metric: str = "accuracy"
    target: float | None = None
    hold: int = Field(default=1, ge=1)
    patience: int | None = Field(default=None, ge=1)
    patience_metric: str = ""
    time_s: float | None = Field(default=None, gt=0)


class Keep(_Data):
    """Where the checkpoints of a job are kept, and how many.

    Args:
        place: path of a folder at the master, or an address that fsspec knows, in which each job has a folder of its
            own; the master's state directory if empty.
        last: how many whole ones.
    """

    place: str = ""
    last: int = Field(default=3, ge=1)


class TensorType(_Data):
    """Type of an array as safetensors writes it, such as F32, and its shape."""

    dtype: str
    shape: tuple[int, ...]


class Resume(_Data):
    """That a job goes on from a checkpoint.

    Args:
        job: the job whose checkpoint it is; its bundle is this one's too, if that has none.
        folder: the folder of its checkpoints, path or address; where `job` keeps them if empty.
        number: of the checkpoint; the newest that is whole if None. The master fills it in.
        tensors: by role and ``element/tensor``, what the graph's state is, to be compared with the checkpoint's; not
            compared where nothing is named.
    """

    job: str = ""
    folder: str = ""
    number: int | None = None
    tensors: dict[str, dict[str, TensorType]] = {}


MOST_OF_A_NAME: Final = 200
"""Characters of a job's name at most: all jobs are listed in one message."""


class JobSpec(_Data):
    """What a client submits, besides the code bundle.

    Args:
        name: for people; need not be unique. `MOST_OF_A_NAME` characters at most, which can be printed.
        graph: the checked logical graph.
        nodes: how many nodes it runs on.
        seed: root of every random number.
        stop: when to stop.
        config: the job's configuration as the user gave it, for the record.
        warnings: what the user should know, shown when the job is submitted and kept in the record.
        watchdog_s: seconds that any task of an operator may run before it counts as hanging and its node fails, at
            least; see `dataflow.runtime.watchdog`. None: as long as it likes.
        record: whether every node notes the events that its engine is given, so that the run can be replayed.
        min_nodes: the fewest nodes that it goes on with once it runs.
        max_nodes: the most nodes; those beyond `nodes`, and others for nodes that have left or were given up, join
            while it runs. None: nobody does.
        keep: what becomes of checkpoints.
        resume: what it goes on from; None if it begins anew.
    """

    name: str
    graph: LogicalGraph
    nodes: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)
    stop: StopRules = StopRules()
    config: dict[str, JsonValue] = {}
    warnings: tuple[str, ...] = ()
    watchdog_s: float | None = Field(default=WATCHDOG_S, gt=0)
    record: bool = False
    min_nodes: int = Field(default=1, ge=1)
    max_nodes: int | None = Field(default=None, ge=1)
    keep: Keep = Keep()
    resume: Resume | None = None

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if len(name) > MOST_OF_A_NAME or not name.isprintable():
            message = f"a job's name has at most {MOST_OF_A_NAME} characters, which can be printed"
            raise ValueError(message)
        return name

    @model_validator(mode="after")
    def _has_so_many(self) -> Self:
        self.check_counts()
        if self.max_nodes is not None and self.record:
            message = "a job that nodes may join is not recorded: leave out max_nodes, or the record of events"
            raise ValueError(message)
        return self

    def check_counts(self) -> None:
        """Nothing, if it may have as many nodes as it has.

        Raises:
            ConfigError: it may not.
        """
        nodes = self.nodes
        if self.min_nodes > nodes:
            fix = f"use min_nodes={nodes} or less, or more nodes"
            raise ConfigError(what=f"min_nodes is more than the job's {nodes} nodes", got=self.min_nodes, fix=fix)
        if self.places < nodes:
            fix = f"use max_nodes={nodes} or more, or fewer nodes"
            raise ConfigError(what=f"max_nodes is less than the job's {nodes} nodes", got=self.max_nodes, fix=fix)

    @property
    def places(self) -> int:
        """Nodes of its plan: as many as it may ever have."""
        return self.nodes if self.max_nodes is None else self.max_nodes

    def plan(self, names: tuple[str, ...] = (), compute_tasks: int = 1) -> PhysicalPlan:
        """Its plan, with a node for every place.

        Args:
            names: of the nodes; see `compile_graph`.
            compute_tasks: of every node.

        Raises:
            PlanError: the graph does not fit so many nodes.
            ConfigError: no nodes can join it.
        """
        plan = compile_graph(self.graph, self.places, compute_tasks=compute_tasks, seed=self.seed, names=names)
        return plan.model_copy(update={"vacant": tuple(sorted(vacant_nodes(self)))})


def needed_nodes(spec: JobSpec) -> frozenset[int]:
    """Nodes that a job cannot do without: those of roles that hold parts of a whole which nobody can make good."""
    return _holders(spec, [each for each in _parts(spec) if not each.rebuilt])


def nodes_with_parts(spec: JobSpec) -> frozenset[int]:
    """Nodes of roles that hold parts of a whole: without any of them a checkpoint is not whole."""
    return _holders(spec, _parts(spec))


def summed_nodes(spec: JobSpec) -> frozenset[int]:
    """Nodes whose parts of a whole are taken over by others."""
    return _holders(spec, [each for each in _parts(spec) if each.kind is StateKind.SUMMED])


def vacant_nodes(spec: JobSpec) -> frozenset[int]:
    """Places that no node has at the start: the last ones whose nodes hold nothing that others lack.

    Raises:
        ConfigError: the job may have more nodes than it begins with, and there are no such places.
    """
    more = spec.places - spec.nodes
    if spec.max_nodes is None:
        return frozenset()
    fixed = {role.name for role in spec.graph.roles if isinstance(role.size, int)}
    members = compile_graph(spec.graph, spec.places).members()
    bound = _holders(spec, [each for each in _parts(spec) if not each.grows])
    bound = bound.union(*(members[role] for role in fixed))
    late = _holders(spec, _left_behind(spec))
    free = [node for node in range(spec.places) if node not in bound | late]
    if not free:
        why = "each of its nodes holds a part of the whole, from the start"
        if late - bound:
            why = "none of its operators brings a newcomer's replica to where the others' are (catches_up)"
        elif StateKind.SUMMED in {element.kind for element in spec.graph.elements}:
            why = "each of its nodes adds up what its neighbours tell it, from the start"
        what = f"no node can join {spec.graph.name!r} while it runs: {why}"
        raise ConfigError(what, got=f"max_nodes={spec.max_nodes}", fix="leave max_nodes out")
    return frozenset(free[len(free) - more :])


def irreplaceable_nodes(spec: JobSpec) -> frozenset[int]:
    """Nodes that are never started again while others go on: with what they held, or with what they would lack.

    Those that a job cannot do without are started again with what they lack, too, or it could not go on at all.
    """
    summed = [each for each in _parts(spec) if each.kind is StateKind.SUMMED and not each.grows]
    return _holders(spec, summed) | (_holders(spec, _left_behind(spec)) - needed_nodes(spec))


def adjusted_nodes(spec: JobSpec) -> frozenset[int]:
    """Nodes with operators that can be told to change something while the job runs."""
    roles = {operator.role for operator in spec.graph.operators if operator.adjusts}
    members = compile_graph(spec.graph, spec.places).members() if roles else {}
    return frozenset(node for role in roles for node in members[role]) - vacant_nodes(spec)


def _parts(spec: JobSpec) -> list[ElementSpec]:
    return [element for element in spec.graph.elements if element.kind in PARTS_OF_A_WHOLE]


def _left_behind(spec: JobSpec) -> list[ElementSpec]:
    """Replicas that no operator of their role brings to where the others' are, on a node that has come back."""
    caught_up = {operator.role for operator in spec.graph.operators if operator.catches_up}
    return [each for each in spec.graph.elements if each.kind is StateKind.PARTIAL and each.role not in caught_up]


def _holders(spec: JobSpec, elements: Sequence[ElementSpec]) -> frozenset[int]:
    roles = {element.role for element in elements}
    members = compile_graph(spec.graph, spec.places).members() if roles else {}
    return frozenset(node for role in roles for node in members[role])
