"""What feeds a chain, and what of it has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from dataflow.engine.flow import as_set
from dataflow.engine.loading import Members
from dataflow.graph.logical import LogicalGraph, OperatorSpec
from dataflow.graph.routes import reached

Source = tuple[int, int | None]
"""What feeds a chain: number of the edge, and of the sending node if the edge crosses nodes."""


class Inputs:
    """The sources of a chain. Only those that have ended are kept: what every node has is shared by all."""

    def __init__(self, senders: Mapping[int, Collection[int | None]]) -> None:
        """Nothing has ended yet.

        Args:
            senders: by edge number, the nodes that may send; None for an edge that stays on its node.
        """
        self._senders = senders
        self._ended: dict[int, set[int | None]] = {number: set() for number in senders}
        self._open = sum(len(nodes) for nodes in senders.values())

    @classmethod
    def feeding(cls, graph: LogicalGraph, members: Members, operator: OperatorSpec, node: int) -> Inputs:
        """Everything that feeds an operator on a node; nothing of it has ended but what the node would send itself."""
        senders: dict[int, Collection[int | None]] = {}
        alone: set[int] = set()
        for number, edge in enumerate(graph.edges):
            if edge.target == operator.id and edge.route is None:
                senders[number] = (None,)
            elif edge.target == operator.id:
                is_reached = node in as_set(reached(edge.route, members[operator.role]))
                senders[number] = as_set(members[graph.operator(edge.source).role]) if is_reached else ()
                if not edge.loopback:
                    alone.add(number)
        inputs = cls(senders)
        for number in alone:
            inputs.end((number, node))
        return inputs

    def __bool__(self) -> bool:
        """Whether any source is open."""
        return self._open > 0

    def __iter__(self) -> Iterator[Source]:
        """Every open source."""
        for number, nodes in self._senders.items():
            ended = self._ended[number]
            yield from ((number, node) for node in nodes if node not in ended)

    def end(self, source: Source) -> bool:
        """Note that nothing more comes from a source; whether it was open."""
        number, node = source
        if node not in self._senders[number] or node in self._ended[number]:
            return False
        self._ended[number].add(node)
        self._open -= 1
        return True

    def reopen(self, node: int) -> None:
        """Note that a node has come back: what it sends is expected again."""
        for number, ended in self._ended.items():
            if node in ended and node in self._senders[number]:
                ended.remove(node)
                self._open += 1

    def of(self, node: int) -> list[Source]:
        """The sources that a node has, open or ended."""
        return [(number, node) for number, nodes in self._senders.items() if node in nodes]

    def brings(self, node: int) -> bool:
        """Whether anything may still come from a node."""
        return any(node in nodes and node not in self._ended[number] for number, nodes in self._senders.items())
