"""Follow: average what all have been told of a worker's weights, where a codec leaves some for later."""

from __future__ import annotations

from pydantic import Field

from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from dataflow.state import Reads, Writes
from operators.average import AverageState
from operators.joining import Outgoing
from operators.messages import Progress, Vector


class Follow(Operator):
    """Takes the node's weights, without what it owes the others, into their average after each of its gradients.

    Its own gradients are in its weights at once, and what a codec has left of them is in nobody else's. Averages
    without that are of what all have, and better (docs/decisions/0043-averages-of-what-all-have.md). This is not part
    of `Compute`, which would have to wait for whoever codes.

    It waits until the window has the gradient, or what others lack of that would count. Progress is passed on as it
    is: whoever it makes look at the average finds the gradient in it.

    Args:
        over: gradients, of all nodes together, over which weights are averaged.
    """

    pool = "network"
    drained = True
    over: float = Field(gt=0)
    progress = In(Progress, capacity=64)
    followed = Out(Progress)
    replica = Reads()
    average = Writes()
    window = Writes()

    def open(self, node: NodeContext) -> None:
        """Compile what averages."""
        AverageState.compile()

    def ready(self, average: AverageState, window: Outgoing) -> bool:
        """Whether the window has the gradient behind the one that was followed last."""
        return window.newest != average.number

    def process(
        self, progress: Progress, replica: Vector, average: AverageState, window: Outgoing, node: NodeContext
    ) -> Emissions:
        """The message, as it is."""
        owed = window.owed if window.receivers else None  # alone, a node has all that anybody has
        average.follow(replica, self.over / node.size, owed=owed)
        average.number = progress.step
        yield self.followed(progress)
