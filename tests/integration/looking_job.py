"""A tree whose workers each tell how good their own model is, and not only what all make of their shares together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ako_jobs import tree
from dataflow import Emissions, LogicalGraph, Message, Out
from dataflow.node_context import NodeContext
from operators.clocks import ClocksState
from operators.examine import Examine
from operators.messages import Share, Vector


@dataclass(frozen=True, slots=True)
class Looked(Message):
    """What a worker has found."""

    accuracy: float


class Look(Examine):
    """Examines all test images wherever a share of them is due."""

    sends = False
    looked = Out(Looked, reported=True)

    def process(
        self,
        share: Share,
        replica: Vector,
        average: Vector | None,
        statistics: Vector,
        clocks: ClocksState,
        node: NodeContext,
    ) -> Emissions:
        alone = replace(share, nodes=np.array([node.index]))
        for effect in super().process(alone, replica, average, statistics, clocks, node):
            examined = effect.message
            yield self.looked(Looked(examined.correct / len(examined.predicted)))


Config = tree.Config


def build(config: tree.Config) -> LogicalGraph:
    graph = tree.build(config)
    examine = Examine.model_validate_json(graph.operator("examine").params)
    return graph.with_operator("look", Look(**dict(examine)), role="worker").connect("due.shared", "look")
