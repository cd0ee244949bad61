"""What processes do that are stopped, or run out of file descriptors: in real processes, by the kernel's own means."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import runtime_job
from test_runtime_cluster import processes

from dataflow.clock import SystemClock
from dataflow.engine.job_life import JobState
from dataflow.plan.job import JobSpec
from dataflow.runtime.bundle import Bundle, make_bundle
from dataflow.runtime.client import Client
from dataflow.runtime.local_cluster import LocalCluster
from tests.clusters import shared_cluster

HERE = Path(__file__).parent
ENDLESS = 1_000_000
CLOCK = SystemClock()
PATIENCE_S = 30.0

pytestmark = pytest.mark.xdist_group(__name__)  # these tests share a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with shared_cluster(2) as running:
        yield running


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return make_bundle(HERE)


def spec(count: int, *, pause_s: float = 0.0, watchdog_s: float = 10.0) -> JobSpec:
    graph = runtime_job.build(count=count, pause_s=pause_s)
    return JobSpec(name="numbers", graph=graph, nodes=2, watchdog_s=watchdog_s)


@contextmanager
def limit(pid: int, descriptors: int) -> Iterator[None]:
    """Let a running process, and those that it starts, have so many file descriptors."""
    before = resource.prlimit(
        pid, resource.RLIMIT_NOFILE, (descriptors, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1])
    )
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_nbytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def job_process(agent: int) -> int:
    (pid,) = processes(f"--parent {agent} ")
    return pid


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process are of, for people."""
    files = list[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has been closed meanwhile
            files.append(os.readlink(each))
    return sorted(files)


def until(true: Callable[[], bool], tell: Callable[[], object] = str) -> None:
    end_s = CLOCK.now() + PATIENCE_S
    while not true():
        assert CLOCK.now() < end_s, tell()
        CLOCK.sleep(0.05)


def received(client: Client, job: str, node: int) -> int:
    """Messages that a node has received, by its newest statistics."""
    return next((sum(each.received_nbytes.values()) for each in client.job(job).statistics if each.node == node), 0)


def is_running(client: Client, job: str) -> None:
    until(lambda: received(client, job, 0) > 0 < received(client, job, 1))


def test_stopped_receiver_costs_its_senders_neither_memory_nor_processor_and_goes_on(
    cluster: LocalCluster, bundle: Bundle
) -> None:
    client, agents = cluster.client, cluster.processes()
    job = client.submit(spec(ENDLESS, pause_s=0.001, watchdog_s=1.0), bundle)
    is_running(client, job)
    sender, receiver = job_process(agents["node-0"]), job_process(agents["node-1"])
    os.kill(receiver, signal.SIGSTOP)
    try:
        CLOCK.sleep(0.3)  # what there is credit for goes out
        memory, taken_s = memory_nbytes(sender), processor_s(sender)
        CLOCK.sleep(0.9)  # after 2 s it would be dead
        assert memory_nbytes(sender) - memory < 16 << 20
        assert processor_s(sender) - taken_s < 0.5
        stood = received(client, job, 1)
    finally:
        os.kill(receiver, signal.SIGCONT)
    until(lambda: received(client, job, 1) > stood)
    assert client.job(job).state is JobState.RUNNING
    client.cancel(job)
    assert client.wait(job).state is JobState.CANCELLED


def test_job_runs_where_every_process_has_64_descriptors(cluster: LocalCluster, bundle: Bundle) -> None:
    with ExitStack() as limits:
        for pid in cluster.processes().values():
            limits.enter_context(limit(pid, 64))
        assert cluster.client.wait(cluster.client.submit(spec(5), bundle)).state is JobState.FINISHED


def test_agent_without_descriptors_says_so_leaks_none_and_runs_the_next_job(
    cluster: LocalCluster, bundle: Bundle
) -> None:
    client, agent = cluster.client, cluster.processes()["node-1"]
    client.wait(client.submit(spec(5), bundle))  # the first one costs a connection that stays
    until(lambda: not any(node.job for node in client.nodes()))
    before = descriptors(agent)
    with limit(agent, before + 8):
        status = client.wait(client.submit(spec(5), bundle))
    assert status.state is JobState.FAILED
    assert status.failed_node == 1
    needs = f"a node's agent, for a job, needs 12 more file descriptors, and has {before} of {before + 8} open"
    assert f"node node-1: the job process cannot be started: {needs}; raise the limit, as with `ulimit -n 1024`" in (
        status.reason
    )
    until(lambda: not any(node.job for node in client.nodes()))
    until(lambda: descriptors(agent) == before)
    assert client.wait(client.submit(spec(5), bundle)).state is JobState.FINISHED
    until(lambda: descriptors(agent) == before)


def test_master_without_descriptors_does_not_spin_and_answers_again_afterwards(cluster: LocalCluster) -> None:
    client, master = cluster.client, cluster.processes()["master"]

    def flood(after_s: float) -> None:
        before = descriptors(master)
        with limit(master, before + 8), ExitStack() as held:
            host, port = client.address.split(":")
            for _ in range(30):
                held.enter_context(socket.create_connection((host, int(port))))
            until(lambda: descriptors(master) >= before + 8)
            taken_s = processor_s(master)
            CLOCK.sleep(after_s)
            assert processor_s(master) - taken_s < 1.0
            client.nodes()

    client.jobs()
    before = descriptors(master)
    flood(0.0)  # the first one may cost a descriptor that stays
    until(lambda: descriptors(master) <= before + 1)
    before, files = descriptors(master), open_files(master)
    flood(2.0)
    until(lambda: descriptors(master) <= before, lambda: (files, open_files(master)))
    with Client(client.address, (cluster.state_dir / "token").read_text().strip()) as another:
        until(lambda: len(another.nodes()) == 2)
