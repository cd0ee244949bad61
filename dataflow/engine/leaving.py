"""Leaving: a node finishes what it has begun while the others go on, and then waits for nobody.

Its sources are stopped, and what hears of no other node ends: then it has made all that it ever will. From that moment
on it hears of others no more, as if they had ended, so that the rest of it ends, too, once all that it has for them is
sent. Invariant: whatever a source has begun is sent to everybody before the node ends.
"""

from __future__ import annotations

from dataflow.engine.chain_state import ChainState
from dataflow.engine.wiring import Wiring
from dataflow.graph.logical import LogicalGraph


class Leaving:
    """A node on its way out of a job that goes on.

    Args:
        graph: the job's graph.
        wiring: the node's chains.
    """

    def __init__(self, graph: LogicalGraph, wiring: Wiring) -> None:
        chain_of = {name: state for state in wiring.in_order for name in state.chain.plan.operators}
        hearing = {state.name for state in wiring.in_order if state.open_inputs.others(wiring.node)}
        local = [edge for edge in graph.edges if edge.route is None and edge.source in chain_of]
        found = True
        while found:
            targets = {chain_of[edge.target].name for edge in local if chain_of[edge.source].name in hearing}
            found = not targets <= hearing
            hearing |= targets
        self._making = [state for state in wiring.in_order if state.name not in hearing]

    def stop(self, state: ChainState) -> None:
        """Stop a chain that is a source, unless that sees for itself when it is needed no more."""
        state.stopping = state.stopping or not state.chain.ends_itself

    def has_made_all(self, chains: list[ChainState]) -> bool:
        """Whether all that hears of no other node has ended; `chains` are those that have not."""
        return not any(state in chains for state in self._making)
