"""Workers that minimise theta^2 / 2 at parameter servers, whose gradients are applied in strict turns.

Whatever the network does, a server takes gradient 1 of worker 0, gradient 1 of worker 1, gradient 2 of worker 0 and so
on: the order in which methods, section 5, gives its answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ako_jobs.parameter_server import add_servers
from dataflow.engine.loading import LoadedNode
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.ports import In, Out
from dataflow.state import State, StateElement, StateKind, Writes
from operators.clocks import Clocks, ClocksState
from operators.layout import Layout, Sharding
from operators.messages import Fragment, Gradient, Vector
from operators.optimizer import Sgd
from operators.partition import PartitionByOwner
from operators.schedule import Schedule
from operators.serve import Serve
from operators.served import ServedState
from operators.update_rules import AnyRule, Rule
from operators.vector_state import VectorState
from operators.window import Window

WEIGHTS, WORKERS, RATE = 6, 2, 0.1


class Ones(StateElement):
    """A vector that begins with ones."""

    kind: ClassVar[StateKind] = StateKind.PARTIAL

    def create(self, node: NodeContext) -> VectorState:
        return VectorState(np.ones(WEIGHTS, np.float32))


class Still(StateElement):
    """The velocity of an optimizer."""

    optimizer: Sgd

    def create(self, node: NodeContext) -> VectorState:
        return VectorState(self.optimizer.velocity(WEIGHTS))


class Quadratic(Operator):
    """Makes `rounds` gradients of theta^2 / 2 at the replica, each once the servers have answered the one before."""

    source = True
    rounds: int
    optimizer: Sgd
    gradients = Out(Gradient)
    replica = Writes()
    velocity = Writes()
    clocks = Writes()

    def ready(self, clocks: ClocksState) -> bool:
        return clocks.made <= clocks.slowest()

    def process(self, tick: Tick, replica: VectorState, velocity: VectorState, clocks: ClocksState) -> Emissions:
        if tick.step == self.rounds:
            yield EndOfData()
            return
        clocks.made += 1
        gradient = replica.values.copy()
        self.optimizer.direct(gradient, replica.current, velocity.values, RATE)
        yield self.gradients(Gradient(clocks.made, gradient, 1))


@dataclass
class TurnsState(State):
    """How many gradients have had their turn, and those that came before it."""

    done: int = 0
    held: dict[tuple[int, int], Fragment] = field(default_factory=dict)

    def snapshot(self) -> TurnsState:
        return self

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        self.held.clear()


class Turns(StateElement):
    """Nothing has come yet."""

    def create(self, node: NodeContext) -> TurnsState:
        return TurnsState()


class TakeTurns(Operator):
    """Holds gradients back until it is their turn."""

    pool = "network"
    fragments = In(Fragment)
    in_turn = Out(Fragment)
    turns = Writes()

    def process(self, fragment: Fragment, turns: TurnsState) -> Emissions:
        turns.held[fragment.high, fragment.origin] = fragment
        while (due := (turns.done // WORKERS + 1, turns.done % WORKERS)) in turns.held:
            turns.done += 1
            yield self.in_turn(turns.held.pop(due))


def turns_job(rule: AnyRule, updates: int, *, servers: int = 1, slim: bool = False) -> LogicalGraph:
    """Two workers that make `updates` gradients together.

    Args:
        rule: of the servers.
        updates: even.
        servers: over which the weights are divided.
        slim: whether workers send Nesterov's updates, of momentum 0.9, and the servers subtract them.
    """
    layout = Layout.of(WEIGHTS)
    sharding = Sharding(layout=layout)
    optimizer = Sgd(momentum=0.9, look_ahead=1, scaled=True) if slim else Sgd()
    schedule = Schedule(lr=RATE)
    graph = (
        LogicalGraph(name="turns")
        .with_role("worker", "rest")
        .with_role("server", servers)
        .with_state("replica", Ones(), role="worker")
        .with_state("velocity", Still(optimizer=optimizer), role="worker")
        .with_state("clocks", Clocks(cells=layout.cells, origins="server", sharding=sharding), role="worker")
        .with_state("shard", Ones(), role="server")
        .with_state("turns", Turns(), role="server")
        .with_operator("compute", Quadratic(rounds=updates // WORKERS, optimizer=optimizer), role="worker")
    )
    graph = add_servers(
        graph,
        Serve(sharding=sharding, schedule=None if slim else schedule),
        Window(layout=layout, receivers="server", sharding=sharding),
        PartitionByOwner(sharding=sharding),
        schedule,
        rule=rule,
    )
    return graph.insert_after("receive", TakeTurns())


def master(nodes: list[LoadedNode], rule: Rule) -> list[float]:
    """Theta of the papers, element by element, each from the server that owns it."""
    found: list[float] = []
    for node in nodes:
        if "served" in node.states:
            shard, served = node.states["shard"], node.states["served"]
            assert isinstance(shard, VectorState)
            assert isinstance(served, ServedState)
            for (start, stop), memory in served.memories():
                theta: Vector = rule.master(shard.values[start:stop], memory)
                found += theta.tolist()
    return found


def replicas(nodes: list[LoadedNode]) -> list[list[float]]:
    """What every worker holds."""
    states = [node.states["replica"] for node in nodes if "replica" in node.states]
    return [state.values.tolist() for state in states if isinstance(state, VectorState)]
