from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import runtime_job

from dataflow.clock import SystemClock
from dataflow.engine.job_life import JobState
from dataflow.plan.job import JobSpec
from dataflow.runtime.auth import read_token
from dataflow.runtime.bundle import make_bundle
from dataflow.runtime.client import Client
from dataflow.runtime.cluster_processes import Nursery
from dataflow.runtime.local_cluster import LocalCluster

HERE = Path(__file__).parent
ENDLESS = 1_000_000


def processes(mark: str) -> dict[int, str]:
    """Command lines of running processes that contain `mark`."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line and path.parent.name != str(os.getpid()):
            found[int(path.parent.name)] = line
    return found


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def job_processes(cluster: LocalCluster) -> dict[int, str]:
    agents = [pid for name, pid in cluster.processes().items() if name != "master"]
    found = {}
    for agent in agents:
        found.update(processes(f"--parent {agent} "))
    return found


def until_gone(pids: dict[int, str]) -> None:
    while any(Path(f"/proc/{pid}/cmdline").exists() and line in processes(line).values() for pid, line in pids.items()):
        SystemClock().sleep(0.02)


def submit_endless(client: Client, nodes: int) -> str:
    graph = runtime_job.build(count=ENDLESS, pause_s=0.01)
    return client.submit(JobSpec(name="endless", graph=graph, nodes=nodes), make_bundle(HERE))


def wait_until_running(client: Client, job: str) -> None:
    for event in client.watch(job):
        if event.report is not None:
            return


def run_module(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_second_master_on_the_same_state_directory_or_port_is_refused(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, state_dir=tmp_path / "state") as cluster:
        same_state = run_module("dataflow.runtime.master", "--state-dir", str(cluster.state_dir), "--port", "0")
        assert same_state.returncode == 2
        assert "error: another master runs on this state directory" in same_state.stderr
        port = cluster.client.address.rpartition(":")[2]
        same_port = run_module("dataflow.runtime.master", "--state-dir", str(tmp_path / "other"), "--port", port)
        assert same_port.returncode == 2
        assert f"error: cannot listen on this address; another program may have the port at 127.0.0.1:{port}" in (
            same_port.stderr
        )
        assert len(cluster.client.nodes()) == 1


def test_second_agent_of_a_name_and_one_with_a_wrong_token_are_refused() -> None:
    with LocalCluster(nodes=1) as cluster:
        again = run_module("dataflow.runtime.agent", "--name", "node-0", "--state-dir", str(cluster.state_dir))
        assert again.returncode == 2
        assert "a node of this name is attached already" in again.stderr
        outside = cluster.state_dir / "outside"
        outside.mkdir()
        (outside / "token.node").touch(mode=0o600)
        (outside / "token.node").write_text("wrong")
        where = ("--master", cluster.client.address, "--state-dir", str(outside))
        wrong = run_module("dataflow.runtime.agent", "--name", "node-9", *where)
        assert wrong.returncode == 2
        assert "error: the master refuses this token" in wrong.stderr
        assert [node.name for node in cluster.client.nodes()] == ["node-0"]


def test_local_cluster_can_be_entered_again() -> None:
    cluster = LocalCluster(nodes=1)
    for _ in range(2):
        with cluster:
            assert [node.name for node in cluster.client.nodes()] == ["node-0"]


def test_local_clusters_in_turn_share_what_they_are_forked_from_and_leave_nothing_of_themselves() -> None:
    zygotes = set()
    with Nursery() as nursery:
        for nodes in (2, 1):
            with LocalCluster(nodes, nursery=nursery) as cluster:
                ours = {pid: command(pid) for pid in cluster.processes().values()}
                zygotes |= {parent(pid) for pid in ours}
                wait_until_running(cluster.client, submit_endless(cluster.client, nodes))
                ours |= job_processes(cluster)
                assert len(ours) == 1 + 2 * nodes
            until_gone(ours)
        (zygote,) = zygotes
        assert Path(f"/proc/{zygote}/task/{zygote}/children").read_text() == ""
    assert not Path(f"/proc/{zygote}").exists()


def test_local_cluster_that_is_interrupted_as_it_ends_leaves_nothing_in_what_it_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a folder that is relative to one that what it is forked from was not started in."""

    ours: dict[int, str] = {}

    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    def run(nursery: Nursery) -> None:
        with LocalCluster(nodes=1, nursery=nursery, state_dir=Path("here")) as cluster:
            assert (tmp_path / "here" / "endpoint").exists()
            ours.update({pid: command(pid) for pid in cluster.processes().values()})
            monkeypatch.setattr("dataflow.runtime.cluster_processes._Forked.terminate", interrupt)

    with Nursery() as nursery:
        nursery.begin()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            run(nursery)
        assert len(ours) == 2
        until_gone(ours)


def test_local_cluster_ignores_the_token_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AKO_TOKEN", "of another cluster")
    with LocalCluster(nodes=1) as cluster:
        assert [node.name for node in cluster.client.nodes()] == ["node-0"]


def test_local_cluster_goes_by_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with LocalCluster(nodes=2, tasks=1) as cluster:
        spec = JobSpec(name="numbers", graph=runtime_job.build(), nodes=2)
        assert cluster.client.wait(cluster.client.submit(spec, make_bundle(HERE))).state is JobState.FINISHED


def test_agent_whose_fork_server_was_killed_starts_another() -> None:
    with LocalCluster(nodes=1, tasks=1) as cluster:
        spec = JobSpec(name="numbers", graph=runtime_job.build(count=3), nodes=1)
        for _ in range(2):
            ((server, _),) = processes(f"dataflow.runtime.fork_server --agent {cluster.processes()['node-0']}").items()
            assert cluster.client.wait(cluster.client.submit(spec, make_bundle(HERE))).state is JobState.FINISHED
            os.kill(server, signal.SIGKILL)
            assert cluster.client.wait(cluster.client.submit(spec, make_bundle(HERE))).state is JobState.FINISHED


def test_killed_agent_takes_its_job_process_along_and_a_job_without_nodes_fails() -> None:
    with LocalCluster(nodes=2, tasks=1) as cluster:
        job = submit_endless(cluster.client, 2)
        wait_until_running(cluster.client, job)
        left = job_processes(cluster)
        assert len(left) == 2
        os.kill(cluster.processes()["node-1"], signal.SIGKILL)
        os.kill(cluster.processes()["node-0"], signal.SIGKILL)
        until_gone(left)
        status = cluster.client.wait(job)
        assert status.state is JobState.FAILED
        assert ": it was lost: its connection broke; there is no whole checkpoint" in status.reason


def test_restarted_cluster_knows_the_jobs_of_the_one_before(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, tasks=1, state_dir=tmp_path) as cluster:
        done = cluster.client.submit(
            JobSpec(name="short", graph=runtime_job.build(count=3), nodes=1), make_bundle(HERE)
        )
        assert cluster.client.wait(done).state is JobState.FINISHED
        files = dict(cluster.client.artifacts(done))
        interrupted = submit_endless(cluster.client, 1)
        wait_until_running(cluster.client, interrupted)
        waiting = submit_endless(cluster.client, 2)
        left = job_processes(cluster)
        os.kill(cluster.processes()["master"], signal.SIGKILL)
    until_gone(left)
    with LocalCluster(nodes=1, tasks=1, state_dir=tmp_path) as cluster:
        client = cluster.client
        assert [job.id for job in client.jobs()] == [done, interrupted, waiting]
        assert client.job(done).state is JobState.FINISHED
        assert dict(client.artifacts(done)) == files
        failed = client.wait(interrupted)
        assert failed.state is JobState.FAILED
        assert (
            "the last of them node node-0: it was lost: its agent was restarted; there is no whole checkpoint"
            in failed.reason
        )
        assert [event.state for event in client.watch(interrupted)][-1] == "FAILED"
        assert client.job(waiting).state is JobState.PENDING
        assert client.job(waiting).reason == "needs 2 nodes, 1 attached"


CLIENT = """
import sys
sys.path.insert(0, {here!r})
from test_runtime_cluster import submit_endless, wait_until_running
from dataflow.runtime.local_cluster import LocalCluster
with LocalCluster(nodes=2, tasks=1) as cluster:
    job = submit_endless(cluster.client, 2)
    wait_until_running(cluster.client, job)
    print(cluster.state_dir, *cluster.processes().values(), flush=True)
    {then}
"""


@contextmanager
def started_client(then: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str, dict[int, str]]]:
    """A process with a local cluster that runs a job; its state directory, and all processes of the cluster."""
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT.format(here=str(HERE), then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        try:
            assert process.stdout is not None
            state_dir, *pids = process.stdout.readline().split()
            found = processes(state_dir)
            assert set(found) == {int(pid) for pid in pids}
            for pid in pids:
                found.update(processes(f"--parent {pid} "))
            assert len(found) == 5, "a master, two agents, two job processes"
            yield process, state_dir, found
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_a_client_that_is_killed_or_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    with started_client("cluster.client.wait(job)", tmp_path) as (process, _, cluster):
        process.send_signal(number)
        until_gone(cluster)
        assert process.wait() != 0


def test_no_process_outlives_a_client_that_raises_and_the_logs_are_kept(tmp_path: Path) -> None:
    with started_client("sys.stdin.readline(); raise ValueError", tmp_path) as (process, state_dir, cluster):
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
        until_gone(cluster)
        assert process.wait() == 1
    assert sorted(path.name for path in (Path(state_dir) / "logs").iterdir()) == [
        "master.log",
        "node-0.log",
        "node-1.log",
    ]


def wait_interrupted(client: Client, job: str, after_s: float) -> None:
    """Wait for a job until Ctrl-C, which comes after `after_s` seconds."""
    interrupt = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    client.wait(job)


def test_client_interrupted_at_any_moment_of_a_call_can_still_be_used_and_closed(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, tasks=1, state_dir=tmp_path) as cluster:
        job = submit_endless(cluster.client, 2)
        for step in range(40):
            with Client(cluster.client.address, read_token(tmp_path)) as client:
                client.nodes()
                # The call that resolves the id, and the stream's beginning, take a few milliseconds.
                with pytest.raises(KeyboardInterrupt):
                    wait_interrupted(client, job, step * 0.0003)
                assert client.job(job).state is JobState.PENDING


def test_client_that_waits_notices_an_interrupt_that_another_thread_is_given(tmp_path: Path) -> None:
    def interrupt() -> None:
        time.sleep(0.3)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # which does not wake the main thread

    with LocalCluster(nodes=1, tasks=1, state_dir=tmp_path) as cluster:
        job = submit_endless(cluster.client, 2)
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            cluster.client.wait(job)
        assert cluster.client.job(job).state is JobState.PENDING


@pytest.mark.parametrize("module", ["agent", "client", "local_cluster"])
def test_light_modules_import_no_numpy_and_no_pydantic(module: str) -> None:
    code = f"import sys, dataflow.runtime.{module}; print({{'numpy', 'pydantic', 'numba'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
