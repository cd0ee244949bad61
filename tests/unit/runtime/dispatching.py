"""A dispatcher without a network: agents are sessions that a test speaks for, and a clock that it moves."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from dataflow.engine import coordination as co
from dataflow.engine.deadlines import Deadlines
from dataflow.graph.logical import LogicalGraph
from dataflow.message import Tick
from dataflow.operators_api import Emissions, EndOfData, Operator
from dataflow.plan.job import JobSpec, StopRules
from dataflow.runtime.agent_session import AgentSession
from dataflow.runtime.bundle import Bundle
from dataflow.runtime.dispatcher import Dispatcher
from dataflow.runtime.store import Store
from dataflow.transport.generated import control_pb2 as pb

EMPTY = Bundle("", b"")


class Idle(Operator):
    source = True

    def process(self, tick: Tick) -> Emissions:
        yield EndOfData()


class ManualClock:
    def __init__(self) -> None:
        self.now_s = self.set_by_s = 0.0

    def now(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1000.0 + self.now_s + self.set_by_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


class World:
    def __init__(self, folder: Path) -> None:
        self.clock, self.store = ManualClock(), Store(folder)
        self.store.set_alive_s(self.clock.wall())
        self.dispatcher = Dispatcher(self.store, self.clock, Deadlines(), lost_after_s=5.0)

    def attach(self, name: str, life: str = "", held: Sequence[pb.Held] = (), connection: int = 0) -> AgentSession:
        life = life or secrets.token_hex(4)
        hello = pb.Hello(name=name, host="127.0.0.1", cores=2, tasks=1, life=life, held=held, connection=connection)
        return self.dispatcher.attach(hello)

    def restart(self) -> None:
        """Kill the master, and have another one take over."""
        self.dispatcher = Dispatcher(self.store, self.clock, Deadlines(), lost_after_s=5.0)
        self.dispatcher.recover()

    def submit(
        self,
        operation: str,
        nodes: int = 1,
        stop: StopRules | None = None,
        min_nodes: int = 1,
        max_nodes: int | None = None,
    ) -> str:
        graph = LogicalGraph(name="idle").with_role("worker").with_operator("source", Idle(), role="worker")
        stop = stop or StopRules()
        spec = JobSpec(name="job", graph=graph, nodes=nodes, stop=stop, min_nodes=min_nodes, max_nodes=max_nodes)
        return self.dispatcher.submit(operation, spec.model_dump_json().encode(), EMPTY)

    def say(self, session: AgentSession, job: str, start: int = 0, **message: object) -> None:
        """Have the process of a job that is the agent's of this number say something."""
        said = pb.FromProcess(job=job, start=start, message=pb.ProcessMessage(**message))  # type: ignore[arg-type]
        self.dispatcher.heard(session, pb.AgentMessage(from_process=said))

    def wait(self, job: str, seconds: float) -> None:
        """Let time pass."""
        self.clock.now_s += seconds
        run = self.dispatcher.run(job)
        assert run is not None
        run.feed(co.Tick())

    def state(self, job: str) -> tuple[str, str]:
        status = self.store.job(job).status
        return status.state, status.reason

    def change(self, job: str, node: int) -> tuple[str, int, str]:
        """What has become of a node of a job: its life, how often it was started again, and why."""
        change = self.store.job(job).status.changes[node]
        return change.life, change.incarnation, change.reason


def play(folder: Path, scene: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = World(folder)
        await scene(world)
        world.store.close()

    asyncio.run(whole())


async def heard(session: AgentSession) -> tuple[str | None, str]:
    message = await session.next()
    return (None, "") if message is None else (message.job, str(message.WhichOneof("body")))


def start(world: World, sessions: Sequence[AgentSession], job: str, number: int = 0) -> None:
    """Have all nodes of a job run, whose processes are those of this number."""
    for session in sessions:
        world.say(session, job, number, prepared=pb.Prepared(address="127.0.0.1:1"))
    for session in sessions:
        world.say(session, job, number, ready=pb.Ready())


def on(world: World) -> dict[str, str]:
    return {node.name: node.job for node in world.dispatcher.nodes()}


def held(job: str, node: int = 0, start: int = 0, exited: int = 0) -> pb.Held:
    return pb.Held(job=job, operation_id=f"{job}/{node}/{start}", node=node, exited=exited)


def exited(job: str, number: int, status: int = 0) -> pb.AgentMessage:
    return pb.AgentMessage(number=number, exited=pb.ProcessExited(job=job, status=status))


async def told(session: AgentSession) -> list[tuple[str, str]]:
    """All that an agent is told now, but for acknowledgements."""
    session.end()
    found = []
    while (message := await session.next()) is not None:
        found.append((message.job, str(message.WhichOneof("body"))))
    return [each for each in found if each[1] != "kept"]


def two_running(world: World) -> tuple[str, AgentSession]:
    """A job that runs on nodes a and b, and the agent of the latter."""
    sessions = [world.attach("a", "x"), world.attach("b", "y")]
    job = world.submit("one", nodes=2)
    start(world, sessions, job)
    return job, sessions[1]
