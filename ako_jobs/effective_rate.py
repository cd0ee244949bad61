"""The effective learning rate: what one round of all workers moves the model by, in words."""

from __future__ import annotations

from pydantic import BaseModel

from dataflow import place
from dataflow.graph.logical import LogicalGraph

COMPUTE = "operators.compute:Compute"
MEANS = frozenset({"operators.apply:ApplyMean", "operators.serve:ServeMean", "operators.neighbours:PushMean"})
"""Kinds of operators that apply means; by name, so that a job imports no operators but its own."""


def effective_rate(graph: LogicalGraph, config: BaseModel, nodes: int) -> str:
    """One line for people; empty for a graph that computes no gradients or a configuration without `lr`.

    Bulk-synchronous jobs apply the mean of the workers' gradients; in all others the updates of the workers add up.

    Args:
        graph: of the job.
        config: its configuration.
        nodes: how many nodes it runs on.
    """
    lr = getattr(config, "lr", None)
    roles = {operator.role for operator in graph.operators if operator.kind == COMPUTE}
    if not isinstance(lr, int | float) or not roles:
        return ""
    placed = place(graph, nodes)
    workers = sum(len(placed[role]) for role in roles)
    steps, momentum = getattr(config, "local_steps", 1), getattr(config, "momentum", 0)
    more = f"; with momentum {momentum:g}, {1 / (1 - momentum):.3g} times that in the long run" if momentum else ""
    if any(operator.kind in MEANS for operator in graph.operators):
        walked = f"{steps} local steps x lr {lr:g} = {steps * lr:g}" if steps > 1 else f"{lr:g}"
        return f"effective learning rate: {walked} per step, of the mean gradient of {workers} workers{more}"
    each = f"{workers} workers x {steps} local steps" if steps > 1 else f"{workers} workers"
    summed = f"{each} x lr {lr:g} = {workers * steps * lr:g} per round (updates add up)"
    return f"effective learning rate: {summed}{more}"
