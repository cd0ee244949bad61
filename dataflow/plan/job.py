"""Jobs: a graph with how many nodes it wants and when it stops."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from dataflow.graph.logical import LogicalGraph
from dataflow.plan.compile import compile_graph
from dataflow.state import StateKind


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


class JobSpec(_Data):
    """What a client submits, besides the code bundle.

    Args:
        name: for people; need not be unique.
        graph: the checked logical graph.
        nodes: how many nodes it runs on.
        seed: root of every random number.
        stop: when to stop.
        config: the job's configuration as the user gave it, for the record.
        warnings: what the user should know, shown when the job is submitted and kept in the record.
        record: whether every node notes the events that its engine is given, so that the run can be replayed.
        min_nodes: the fewest nodes that it goes on with once it runs.
    """

    name: str
    graph: LogicalGraph
    nodes: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)
    stop: StopRules = StopRules()
    config: dict[str, JsonValue] = {}
    warnings: tuple[str, ...] = ()
    record: bool = False
    min_nodes: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _has_so_many(self) -> Self:
        if self.min_nodes > self.nodes:
            message = f"min_nodes={self.min_nodes} is more than the job's {self.nodes} nodes"
            raise ValueError(message)
        return self


def needed_nodes(spec: JobSpec) -> frozenset[int]:
    """Nodes that a job cannot do without: those of roles that hold the parts of a partitioned state."""
    roles = {element.role for element in spec.graph.elements if element.kind is StateKind.PARTITIONED}
    members = compile_graph(spec.graph, spec.nodes).members() if roles else {}
    return frozenset(node for role in roles for node in members[role])
