"""What feeds a chain, and what of it has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from dataflow.engine.flow import as_set
from dataflow.engine.loading import Members
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.specs import OperatorSpec
from dataflow.state import PARTS_OF_A_WHOLE

Source = tuple[int, int | None]
"""What feeds a chain: number of the edge, and of the sending node if the edge crosses nodes."""


class Inputs:
    """The sources of a chain. Only those that have ended are kept: what every node has is shared by all.

    What a dead node would have sent has ended, but where the job cannot do without that node: it comes back, or the job
    fails. A node that is itself needed goes on for others even if all of these are dead, as some may come back.
    """

    def __init__(
        self,
        senders: Mapping[int, Collection[int | None]],
        *,
        needed: Collection[int] = (),
        stays: bool = False,
    ) -> None:
        """Nothing has ended yet.

        Args:
            senders: by edge number, the nodes that may send; None for an edge that stays on its node.
            needed: nodes that the job cannot do without.
            stays: whether the chain's own node is one of them.
        """
        self._needed, self._stays, self._finished, self._deaf = needed, stays, False, False
        self._buried: set[int] = set()
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
                sources, targets = graph.ends(edge, members)
                senders[number] = as_set(sources) if node in as_set(targets) else ()
                if not edge.loopback:
                    alone.add(number)
        parts = [each for each in graph.elements if each.kind in PARTS_OF_A_WHOLE and not each.rebuilt]
        needed = {member for element in parts for member in members[element.role]}
        inputs = cls(senders, needed=needed, stays=node in needed)
        for number in alone:
            inputs._close((number, node))
        return inputs

    def __bool__(self) -> bool:
        """Whether anything more may come."""
        if self._open or not self._buried:
            return self._open > 0
        return (self._stays and not self._finished) or any(node in self._needed for node in self._buried)

    def __iter__(self) -> Iterator[Source]:
        """Every open source."""
        for number, nodes in self._senders.items():
            ended = self._ended[number]
            yield from ((number, node) for node in nodes if node not in ended)

    def end(self, source: Source) -> bool:
        """Note that nothing more comes from a source, which has said so; whether it was open."""
        was_open = self._close(source)
        self._finished = self._finished or not self.brings(source[1])
        return was_open

    def finish(self, node: int) -> bool:
        """Note that a node is through; whether any of its sources was open."""
        return bool([source for source in self.of(node) if self.end(source)])

    def bury(self, node: int) -> bool:
        """Note that a node has died; whether any of its sources was open."""
        was_open = [source for source in self.of(node) if self._close(source)]
        if was_open:
            self._buried.add(node)
        return bool(was_open)

    def reopen(self, node: int) -> None:
        """Note that a node has come back: what it sends is expected again."""
        self._buried.discard(node)
        if self._deaf:
            return
        for number, ended in self._ended.items():
            if node in ended and node in self._senders[number]:
                ended.remove(node)
                self._open += 1

    def others(self, node: int) -> list[Source]:
        """The sources that other nodes than `node` have, open or ended."""
        return [
            (number, each)
            for number, nodes in self._senders.items()
            for each in nodes
            if each is not None and each != node
        ]

    def close_others(self, node: int) -> None:
        """Expect nothing more of any other node than `node`, nor that it comes back."""
        for source in self.others(node):
            self._close(source)
        self._buried.clear()
        self._deaf = True

    def of(self, node: int) -> list[Source]:
        """The sources that a node has, open or ended."""
        return [(number, node) for number, nodes in self._senders.items() if node in nodes]

    def brings(self, node: int | None) -> bool:
        """Whether anything may still come from a node; None: from this one."""
        return any(node in nodes and node not in self._ended[number] for number, nodes in self._senders.items())

    def _close(self, source: Source) -> bool:
        number, node = source
        if node not in self._senders[number] or node in self._ended[number]:
            return False
        self._ended[number].add(node)
        self._open -= 1
        return True
