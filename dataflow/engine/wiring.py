"""Where everything on a node comes from and goes to, looked up once, when its engine is made."""

from __future__ import annotations

from dataflow.engine.chain import Chain
from dataflow.engine.chain_state import ChainState
from dataflow.engine.flow import Crossing, as_set
from dataflow.engine.inputs import Inputs
from dataflow.engine.loading import LoadedNode
from dataflow.graph.logical import LogicalGraph
from dataflow.plan.physical import PhysicalPlan


class Wiring:
    """A node's chains, and the edges between them and to other nodes.

    Attributes:
        node: number of the node.
        chains: by name.
        in_order: the chains in the order in which they are asked first.
        ahead: by name of a source, and of a chain that is between it and such, the chains that make steps of it.
        entries: by number of an edge that ends here, the chain and the input that it leads to.
        crossings: by number of an edge that crosses nodes and begins here, its sending side.
    """

    def __init__(self, plan: PhysicalPlan, node: int, loaded: LoadedNode) -> None:
        """Make the chains of a loaded node, and connect them.

        Args:
            plan: the physical plan.
            node: the node's number.
            loaded: its operators and state elements.

        Raises:
            OperatorError: an operator cannot work as it is declared.
        """
        graph, members = plan.graph, loaded.members
        chains = [Chain(plan, chain, loaded.operators, loaded.contexts) for chain in plan.chains_on(node)]
        self.node = node
        self.chains = {
            chain.plan.head: ChainState(chain, Inputs.feeding(graph, members, chain.head, node)) for chain in chains
        }
        # Those that chains wait for come before sources, whose work can always wait.
        self.in_order = sorted(self.chains.values(), key=lambda state: state.source)
        self.entries = {
            number: (self.chains[edge.target], edge.input)
            for number, edge in enumerate(graph.edges)
            if edge.target in self.chains
        }
        sending = {chain.last.id: chain for chain in chains}
        self.crossings: dict[int, Crossing] = {}
        for number, edge in plan.stream_edges().items():
            if edge.source in sending:
                sources, targets = graph.ends(edge, members)
                receivers = targets if node in as_set(sources) else ()
                self.crossings[number] = Crossing(
                    number,
                    edge,
                    node,
                    receivers,
                    plan.window_nbytes,
                    graph.tensor_scale,
                    is_service=sending[edge.source].ends_itself,
                )
        self._leaving: dict[tuple[str, str], list[int]] = {}
        for state in self.chains.values():
            self._connect(graph, state)
            state.next_step = loaded.positions.get(state.name, 0)
        self.ahead: dict[str, list[ChainState]] = {}
        for state in self.in_order:
            if state.source:
                state.gathers = self._gathers(graph, state)

    def leaving(self, operator: str, output: str) -> list[int]:
        """Numbers of the edges that leave an output of a chain's last operator."""
        return self._leaving[operator, output]

    def leaving_chain(self, state: ChainState) -> list[int]:
        """Numbers of all edges that leave a chain."""
        last = state.chain.last.id
        return [number for (name, _), numbers in self._leaving.items() if name == last for number in numbers]

    def _connect(self, graph: LogicalGraph, state: ChainState) -> None:
        """Tell a chain where its emissions go, and those who hear of them."""
        last = state.chain.last.id
        leaving = [number for number, edge in enumerate(graph.edges) if edge.source == last]
        for number in leaving:
            self._leaving.setdefault((last, graph.edges[number].output), []).append(number)
        local = [self.entries[number] for number in leaving if number not in self.crossings]
        crossings = [self.crossings[number] for number in leaving if number in self.crossings]
        state.connect([(target.inbox, port) for target, port in local], crossings)
        for target, _ in local:
            if state.source:
                target.feeders.append(state)
            if target.chain.drained:
                state.drained.append(target)
        state.look_around(self.in_order)

    def _gathers(self, graph: LogicalGraph, source: ChainState) -> list[ChainState]:
        """The chains on this node that make steps of what a source gives; notes which chains are ahead of them."""
        gathering: list[ChainState] = []
        ahead = [source]
        for state in ahead:
            ids = state.chain.plan.operators
            targets = (edge.target for edge in graph.edges if edge.source in ids and edge.route is None)
            for target in [self.chains[name] for name in targets if name in self.chains]:
                if target.chain.gather:
                    gathering.append(target)
                elif target not in ahead:
                    ahead.append(target)
        for state in ahead if gathering else ():
            known = self.ahead.setdefault(state.name, [])
            known += [each for each in gathering if each not in known]
        return gathering
