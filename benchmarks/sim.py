"""What the simulator costs: its event loop, its full engine, a thousand nodes, and real gradients.

    python benchmarks/sim.py [--data-dir DIR] [--only loop engine scale mnist] [--quick] [--json FILE]

All times are of the processor, in this process, which has one thread. Sections:

loop: a ball goes to and fro, one event a pass, under `VirtualClock` and, if it is installed (pip install simpy), under
SimPy, there with the leanest event that it has: a timeout with a callback, without processes. Pairs A B A B.

engine: nodes that send small messages to each other in turn, one message from every task. Every message is sent by a
node's engine, carried over the modelled network, received by another node's engine, processed by an operator, and its
credit returned. "Dispatch" is what `NodeEngine.handle` takes for a message on both nodes together, under the memory
driver: operators and network do not count.

scale: phantom nodes, of which most are workers and some are parameter servers, until a number of messages have been
sent. Loading the nodes is part of the time.

mnist: one epoch of MNIST on workers with real gradients, topology ``ako`` with 97 partitions and a round for each
gradient. What the run takes beyond the gradients, which are timed in the same run, is divided by the messages.
Validation, reading and applying are part of it, compilation is not.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as in a job process; read when NumPy and SciPy load

import argparse
import gc
import json
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from pydantic import PrivateAttr

from ako_jobs import ako, parameter_server
from ako_jobs.worker import Setting
from dataflow.engine.events import Command, Event
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.engine.node_engine import NodeEngine
from dataflow.graph.logical import LogicalGraph
from dataflow.graph.routes import Route
from dataflow.message import Message, Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import JobSpec
from dataflow.ports import In, Out
from dataflow.sim.clock import VirtualClock
from dataflow.sim.costs import TaskKind
from dataflow.sim.model import ClusterModel
from dataflow.sim.simulator import Simulator
from operators.clocks import ClocksState
from operators.compute import Compute, Part
from operators.messages import Batch, Vector

try:
    import simpy
    from simpy.events import Timeout
except ImportError:
    simpy = None

SECTIONS = ("loop", "engine", "scale", "mnist")
STEP_S = 5e-3
"""Virtual seconds of a gradient."""

MEANS = {TaskKind("compute", "step", first): STEP_S for first in (True, False)}


@dataclass(frozen=True)
class Size:
    """How much of everything.

    Args:
        passes: of the ball, in each run.
        rounds: runs of sections loop and engine, of which the median or the best counts.
        nodes, each: of section engine, and messages that each of them sends.
        many, servers, messages: of section scale; `servers` of the nodes are parameter servers.
        workers, epochs: of section mnist.
    """

    passes: int = 1_000_000
    rounds: int = 5
    nodes: int = 16
    each: int = 4_000
    many: int = 1_000
    servers: int = 50
    messages: int = 1_000_000
    workers: int = 64
    epochs: float = 1.0


QUICK = Size(passes=50_000, rounds=3, each=400, many=60, servers=6, messages=20_000, workers=8, epochs=0.1)


def cpu_s(work: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    gc.collect()
    begin = time.process_time()
    work()
    return time.process_time() - begin


# The event loop


def ours(passes: int) -> None:
    """The ball under our clock."""
    clock = VirtualClock()

    def hit(left: int) -> None:
        if left:
            clock.at(clock.now() + 1.0, hit, left - 1)

    clock.at(0.0, hit, passes)
    clock.run()


def theirs(passes: int) -> None:
    """The ball under SimPy."""
    environment = simpy.Environment()

    def hit(event: Any) -> None:
        if event.value:
            timeout = Timeout(environment, 1.0, event.value - 1)
            timeout.callbacks.append(hit)

    Timeout(environment, 0.0, passes).callbacks.append(hit)
    environment.run()


def loop(size: Size) -> dict[str, Any]:
    """Events per second of the bare loops, and the median of the ratios of the pairs."""
    pairs = []
    for _ in range(size.rounds):
        mine = cpu_s(lambda: ours(size.passes))
        pairs.append((mine, cpu_s(lambda: theirs(size.passes)) if simpy else mine))
    result: dict[str, Any] = {"events_per_s": size.passes / median(mine for mine, _ in pairs)}
    print(f"loop: {result['events_per_s']:,.0f} events/s", end="")
    if simpy is None:
        print("; SimPy is not installed, so there is nothing to compare with")
        return result
    ratios = sorted(other / mine for mine, other in pairs)
    result |= {"simpy_events_per_s": size.passes / median(other for _, other in pairs), "ratios": ratios}
    print(
        f", SimPy {result['simpy_events_per_s']:,.0f}; ratio {median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
    )
    return result


# The engine


@dataclass(frozen=True, slots=True)
class Ball(Message):
    """A small message for a node."""

    number: int
    to: int


class Serve(Operator):
    """Balls for the other nodes in turn."""

    source = True
    pool = "network"
    balls: int
    served = Out(Ball)

    def process(self, tick: Tick, node: NodeContext) -> Emissions:
        """The next ball, or the end."""
        if tick.step >= self.balls:
            yield EndOfData()
        else:
            others = node.peers
            yield self.served(Ball(tick.step, others[tick.step % len(others)]))


class Throw(Operator):
    """Sends balls."""

    pool = "network"
    sends = True
    balls = In(Ball)
    thrown = Out(Ball)

    def process(self, ball: Ball) -> Emissions:
        """The ball, on its way."""
        yield self.thrown(ball, to=ball.to)


class Catch(Operator):
    """Receives balls."""

    pool = "network"
    receives = True
    arriving = In(Ball)
    caught = Out(Ball)
    _seen: list[int] = PrivateAttr(default_factory=lambda: [0])

    def process(self, ball: Ball) -> Emissions:
        """Counts it."""
        self._seen[0] += 1
        yield self.caught(ball)


def game(each: int) -> LogicalGraph:
    """Every node serves so many balls."""
    return (
        LogicalGraph(name="game")
        .with_role("player")
        .with_operator("serve", Serve(balls=each), role="player")
        .with_operator("throw", Throw(), role="player")
        .with_operator("catch", Catch(), role="player")
        .connect("serve", "throw")
        .connect("throw", "catch", route=Route.BY_DESTINATION)
    )


class Timed:
    """An engine whose `handle` is timed."""

    def __init__(self, engine: NodeEngine) -> None:
        self._engine, self.spent_s = engine, 0.0

    def handle(self, event: Event, now: float) -> list[Command]:
        """What the engine says."""
        begin = time.process_time()
        commands = self._engine.handle(event, now)
        self.spent_s += time.process_time() - begin
        return commands


class HasEngines(Protocol):
    """A driver, as far as its engines may be exchanged."""

    engines: list[Any]


def dispatch_s(graph: LogicalGraph, nodes: int) -> float:
    """Seconds in `handle` of all engines together."""
    driver = MemoryDriver(compile_graph(graph, nodes))
    timed = [Timed(engine) for engine in driver.engines]
    exchanged: HasEngines = driver
    exchanged.engines = timed
    driver.execute()
    return sum(engine.spent_s for engine in timed)


def engine(size: Size) -> dict[str, Any]:
    """Messages per second of the best run, and the dispatch of a message."""
    spec = JobSpec(name="game", graph=game(size.each), nodes=size.nodes)
    messages = size.nodes * size.each

    def simulate() -> None:
        run = Simulator(spec, ClusterModel(compute="constant"), {}).run()
        assert (run.state, run.messages) == ("FINISHED", messages), run.reason

    best = min(cpu_s(simulate) for _ in range(size.rounds))
    dispatch = min(dispatch_s(spec.graph, size.nodes) for _ in range(size.rounds))
    result = {"messages_per_s": messages / best, "dispatch_us": 1e6 * dispatch / messages}
    print(f"engine: {result['messages_per_s']:,.0f} messages/s, dispatch {result['dispatch_us']:.1f} us a message")
    return result


# Many nodes


def scale(size: Size) -> dict[str, Any]:
    """Seconds and peak memory of many phantom nodes."""
    workers = size.many - size.servers
    config = parameter_server.Config.parse(
        {"data": "digits", "phantom": True, "servers": size.servers, "batch": 1, "validate_every": 10**12}
    )
    # A gradient is pushed to all servers, and they answer. When enough have come, each worker is at another one, and
    # servers send the last weights.
    gradients = size.messages / (2 * size.servers) - 1.5 * workers
    config = config.model_copy(update={"epochs": gradients / Setting.of(config).passes.gradients(workers)})
    model = ClusterModel(compute="gamma", step_s=STEP_S)
    sent = []

    def simulate() -> None:
        spec = JobSpec(name="scale", graph=parameter_server.build(config), nodes=size.many)
        run = Simulator(spec, model, MEANS).run()
        assert run.state == "FINISHED", run.reason
        sent.append(run.messages)

    spent = cpu_s(simulate)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"scale: {size.many} nodes ({size.servers} of them servers), {sent[0]:,} messages: {spent:.1f} s, "
        f"{1e6 * spent / sent[0]:.0f} us a message, peak memory {peak / 1e9:.2f} GB"
    )
    return {"nodes": size.many, "messages": sent[0], "seconds": spent, "peak_nbytes": peak}


# Real gradients


class TimedCompute(Compute):
    """Computes gradients and notes how long they take."""

    _spent: list[float] = PrivateAttr(default_factory=list)

    def process(
        self,
        batch: Batch,
        replica: Vector,
        statistics: Vector,
        velocity: Vector,
        clocks: ClocksState,
        node: NodeContext,
    ) -> Part | None:
        """The part of one shard, as ever."""
        begin = time.process_time()
        part = super().process(batch, replica, statistics, velocity, clocks, node)
        self._spent.append(time.process_time() - begin)
        return part

    @property
    def spent_s(self) -> float:
        """Seconds that all gradients took."""
        return sum(self._spent)


def mnist(size: Size, data_dir: str | None) -> dict[str, Any]:
    """Seconds of an epoch, of its gradients, and of what else there is by message."""
    settings: dict[str, Any] = {"data": "mnist", "data_dir": data_dir, "model": "paper", "average": 0}
    settings |= {"epochs": size.epochs, "p": 97, "every": 1}
    graph = ako.build(ako.Config.parse(settings))
    compute = Compute.model_validate_json(graph.operator("compute").params)
    compute.open(NodeContext())  # compiles
    graph = graph.replace("compute", TimedCompute(**dict(compute)))
    runs = []

    def simulate() -> None:
        spec = JobSpec(name="mnist", graph=graph, nodes=size.workers)
        runs.append(Simulator(spec, ClusterModel(compute="gamma", step_s=STEP_S), MEANS).run())

    spent = cpu_s(simulate)
    (run,) = runs
    assert run.state == "FINISHED", run.reason
    gradients = 0.0
    for node in run.nodes:
        timed = node.operators["compute"]
        assert isinstance(timed, TimedCompute)
        gradients += timed.spent_s
    extra_us = 1e6 * (spent - gradients) / run.messages
    print(
        f"mnist: {size.workers} workers, {size.epochs:g} epochs, {run.messages:,} messages: {spent:.1f} s, "
        f"gradients {gradients:.1f} s, {extra_us:.0f} us a message beyond them"
    )
    return {"messages": run.messages, "seconds": spent, "gradient_seconds": gradients, "extra_us": extra_us}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder of the MNIST files; the per-user cache if left out")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="small sizes, for a look within seconds")
    parser.add_argument("--json", type=Path, help="write everything measured there")
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "loop": lambda: loop(size),
        "engine": lambda: engine(size),
        "scale": lambda: scale(size),
        "mnist": lambda: mnist(size, options.data_dir),
    }
    results = {name: sections[name]() for name in options.only}
    if options.json:
        options.json.write_text(json.dumps({"size": asdict(size)} | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
