"""Nodes of a real cluster that die, stand still and come back, while the others go on."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import runtime_job
from test_runtime_cluster import HERE, processes

from dataflow.clock import SystemClock
from dataflow.engine.job_life import JobState
from dataflow.observe.events import JobEvent
from dataflow.plan.job import JobSpec
from dataflow.runtime.bundle import make_bundle
from dataflow.runtime.client import Client
from dataflow.runtime.local_cluster import LocalCluster
from tests.clusters import shared_cluster
from tests.known_answers.integers import integer_job

ENDLESS = 1_000_000

pytestmark = pytest.mark.xdist_group(__name__)  # these tests share a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # jobs find modules of the tests there
        with LocalCluster(nodes=3, tasks=1) as running:
            yield running


def submit(client: Client, **parameters: object) -> str:
    graph = runtime_job.build(**{"count": ENDLESS, "pause_s": 0.02, **parameters})  # type: ignore[arg-type]
    return client.submit(JobSpec(name="numbers", graph=graph, nodes=3), make_bundle(HERE))


def job_process(cluster: LocalCluster, node: int) -> int:
    (pid,) = processes(f"--parent {cluster.processes()[f'node-{node}']} ")
    return pid


def until(client: Client, job: str, holds: Callable[[JobEvent], bool]) -> JobEvent:
    return next(event for event in client.watch(job) if holds(event))


def change(client: Client, job: str, life: str, incarnation: int = 0) -> JobEvent:
    """The event with which a node came to this."""

    def holds(event: JobEvent) -> bool:
        return event.change is not None and (event.change.life, event.change.incarnation) == (life, incarnation)

    return until(client, job, holds)


def back(client: Client, job: str, node: int) -> JobEvent:
    """The event with which a node was a member again; from now on it takes part, and all others know.

    One that others end without having heard of is given up.
    """
    joined = change(client, job, "alive", 1)
    until(client, job, lambda event: event.wall_s > joined.wall_s and event.node == node and event.report is not None)
    return joined


def lives(client: Client, job: str) -> list[tuple[int, str, int]]:
    found = [event.change for event in client.watch(job) if event.change is not None]
    print(*found, sep="\n")  # pytest shows it where a test fails
    return [(each.node, each.life, each.incarnation) for each in found]


def test_killed_job_process_is_started_again_and_all_end(cluster: LocalCluster, tmp_path: Path) -> None:
    client, ends = cluster.client, tmp_path / "ends"
    job = submit(client, ends=str(ends))
    until(client, job, lambda event: event.report is not None)
    killed_s = SystemClock().wall()
    os.kill(job_process(cluster, 1), signal.SIGKILL)
    buried = change(client, job, "waiting")
    joined = back(client, job, 1)
    ends.touch()
    status = client.wait(job)
    assert status.state is JobState.FINISHED, status.reason
    assert buried.change is not None
    assert buried.change.reason.startswith("its job process ended by SIGKILL, perhaps by the kernel")
    assert lives(client, job) == [(1, "waiting", 0), (1, "joining", 1), (1, "alive", 1)]
    print("detected", buried.wall_s - killed_s, "joined", joined.wall_s - killed_s)


def test_job_process_killed_while_its_job_is_deployed_is_started_again_and_the_others_wait(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    client, ends, its = cluster.client, tmp_path / "ends", f"--parent {cluster.processes()['node-2']} "
    while processes(its):  # that of the job before
        SystemClock().sleep(0.01)
    job = submit(client, ends=str(ends))
    while not (found := processes(its)):
        SystemClock().sleep(0.001)
    os.kill(next(iter(found)), signal.SIGKILL)
    change(client, job, "alive")
    ends.touch()
    status = client.wait(job)
    assert status.state is JobState.FINISHED, status.reason
    assert [(node, life) for node, life, _ in lives(client, job)] == [(2, "waiting"), (2, "joining"), (2, "alive")]


def test_job_process_that_is_stopped_for_ever_is_buried_and_started_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    client, ends = cluster.client, tmp_path / "ends"
    job = submit(client, ends=str(ends))
    until(client, job, lambda event: event.report is not None)
    stopped_s = SystemClock().wall()
    stopped = job_process(cluster, 2)
    os.kill(stopped, signal.SIGSTOP)
    buried = change(client, job, "dying")
    joined = back(client, job, 2)
    print("detected", buried.wall_s - stopped_s, "joined", joined.wall_s - stopped_s)
    assert not Path(f"/proc/{stopped}").exists()
    ends.touch()
    assert client.wait(job).state is JobState.FINISHED
    assert lives(client, job) == [(2, "dying", 0), (2, "waiting", 0), (2, "joining", 1), (2, "alive", 1)]


def test_job_process_that_stands_still_for_a_second_is_left_alone(cluster: LocalCluster, tmp_path: Path) -> None:
    client, ends = cluster.client, tmp_path / "ends"
    job = submit(client, ends=str(ends))
    until(client, job, lambda event: event.report is not None)
    paused = job_process(cluster, 1)
    os.kill(paused, signal.SIGSTOP)
    SystemClock().sleep(1.0)
    os.kill(paused, signal.SIGCONT)
    continued_s = SystemClock().wall()
    until(client, job, lambda event: event.wall_s > continued_s and event.node == 1 and event.report is not None)
    ends.touch()
    assert client.wait(job).state is JobState.FINISHED
    assert lives(client, job) == []


def test_kernel_ends_a_job_process_before_its_agent(cluster: LocalCluster, tmp_path: Path) -> None:
    client, ends = cluster.client, tmp_path / "ends"
    job = submit(client, ends=str(ends))
    until(client, job, lambda event: event.report is not None)
    ready, agent = job_process(cluster, 1), cluster.processes()["node-1"]
    scores = [int(Path(f"/proc/{process}/oom_score").read_text()) for process in (ready, agent)]
    ends.touch()
    assert client.wait(job).state is JobState.FINISHED
    assert scores[0] > scores[1] + 100


def test_node_that_crashes_again_and_again_is_given_up_and_the_job_goes_on(cluster: LocalCluster) -> None:
    client = cluster.client
    job = submit(client, harm="kill", at=3)
    gone = change(client, job, "gone", 3)
    assert client.job(job).state is JobState.RUNNING
    client.cancel(job)
    assert client.wait(job).state is JobState.CANCELLED
    assert gone.change is not None
    assert "SIGKILL" in gone.change.reason
    assert sum("about to die" in line.text for line in client.logs(job)) == 4
    assert [life for _, life, _ in lives(client, job)].count("waiting") == 3


def test_lost_agent_that_comes_back_gets_its_node_again(tmp_path: Path) -> None:
    with shared_cluster(2) as cluster:
        client, ends = cluster.client, tmp_path / "ends"
        graph = runtime_job.build(count=ENDLESS, pause_s=0.02, ends=str(ends))
        job = client.submit(JobSpec(name="numbers", graph=graph, nodes=2), make_bundle(HERE))
        until(client, job, lambda event: event.report is not None)
        agent = cluster.processes()["node-1"]
        os.kill(agent, signal.SIGSTOP)
        lost = change(client, job, "away")
        assert lost.change is not None
        assert "no heartbeat for" in lost.change.reason
        os.kill(agent, signal.SIGCONT)
        continued_s = SystemClock().wall()
        joined = change(client, job, "alive", 1)
        print("away", lost.change.reason, "joined", joined.wall_s - continued_s)
        ends.touch()
        assert client.wait(job).state is JobState.FINISHED


def test_folder_of_a_killed_agent_goes_with_the_next_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tempfile.gettempdir()  # this process stays with the one that it has
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with LocalCluster(nodes=1, tasks=1, state_dir=tmp_path / "state") as cluster:
        client = cluster.client
        spec = JobSpec(name="numbers", graph=runtime_job.build(count=ENDLESS, pause_s=0.01), nodes=1)
        job = client.submit(spec, make_bundle(HERE))
        until(client, job, lambda event: event.state == JobState.RUNNING)
        (left,) = tmp_path.glob("ako-agent-*")
        assert list(left.glob("job-*"))
        os.kill(cluster.processes()["node-0"], signal.SIGKILL)
        where = ["--name", "next", "--state-dir", str(tmp_path / "state"), "--die-with", str(os.getpid())]
        with Popen([sys.executable, "-m", "dataflow.runtime.agent", *where], stdout=PIPE) as agent:
            assert agent.stdout is not None
            assert b"node next is attached" in agent.stdout.readline()
            assert not left.exists()
            agent.terminate()
        assert not list(tmp_path.glob("ako-agent-*"))


def test_killed_worker_of_ako_with_integer_gradients_leaves_the_others_to_finish(cluster: LocalCluster) -> None:
    client, rounds = cluster.client, 1500
    job = client.submit(JobSpec(name="integers", graph=integer_job(2, rounds=rounds), nodes=3))
    until(client, job, lambda event: event.statistics is not None and event.statistics.tasks > 200)
    os.kill(job_process(cluster, 2), signal.SIGKILL)
    status = client.wait(job)
    assert status.state is JobState.FINISHED, status.reason
    assert lives(client, job) == [(2, "gone", 0)]  # its graph has nothing that would catch up
    for each in status.statistics[:2]:
        assert each.incarnation == 0
        assert not any(name.endswith("rejected_fragments") for name in each.samples)
