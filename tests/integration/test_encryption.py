"""A cluster with certificates, in real processes: everything that it says to itself is encrypted, and jobs run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
import runtime_job
from test_runtime_cluster import processes

from dataflow.clock import SystemClock
from dataflow.engine.job_life import JobState
from dataflow.errors import AuthError
from dataflow.plan.job import JobSpec
from dataflow.runtime.auth import Role, read_authority, read_token
from dataflow.runtime.bundle import make_bundle
from dataflow.runtime.certificates import make_authority
from dataflow.runtime.client import Client
from dataflow.runtime.state_dir import read_endpoint
from tests.clusters import shared_cluster

HERE = Path(__file__).parent


def run_numbers(client: Client) -> None:
    spec = JobSpec(name="numbers", graph=runtime_job.build(count=10), nodes=2)
    job = client.submit(spec, make_bundle(HERE))
    reports = [event.report for event in client.watch(job) if event.report]
    assert client.job(job).state is JobState.FINISHED
    assert Counter(report.fields["received"] for report in reports) == dict.fromkeys(range(1, 11), 4)


def plain_text_reaches(address: str) -> bool:
    """Whether somebody listens there who speaks gRPC in plain text."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary("/no.Such/Method")(b"", timeout=2.0)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
    return True


def listening(pid: int) -> set[str]:
    """Loopback addresses at which a process accepts connections."""
    sockets = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    for words in map(str.split, lines):
        if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
            found.add(f"127.0.0.1:{int(words[1].rpartition(':')[2], 16)}")
    return found


def test_cluster_with_certificates_runs_jobs_and_roles_hold(tmp_path: Path) -> None:
    make_authority(tmp_path, SystemClock().wall())
    with shared_cluster(2, state_dir=tmp_path) as cluster:
        assert not plain_text_reaches(cluster.client.address)
        run_numbers(cluster.client)
        (job,) = cluster.client.jobs()
        authority = read_authority(tmp_path)
        with Client(cluster.client.address, read_token(tmp_path, Role.READ), authority) as reader:
            assert reader.job(job.id).state is JobState.FINISHED
            with pytest.raises(AuthError, match="the role of this token does not allow that"):
                reader.cancel(job.id)
        with Client(cluster.client.address, read_token(tmp_path, Role.SUBMIT), authority) as submitter:
            run_numbers(submitter)


def test_agent_needs_the_token_of_a_node_and_nodes_encrypt_on_loopback_when_asked(tmp_path: Path) -> None:
    make_authority(tmp_path, SystemClock().wall())
    common = ("--state-dir", str(tmp_path), "--die-with", str(os.getpid()))
    environment = {key: value for key, value in os.environ.items() if key not in ("AKO_TOKEN", "AKO_CA")}
    master = [sys.executable, "-m", "dataflow.runtime.master", *common, "--port", "0", "--encrypt-loopback"]
    agent = [sys.executable, "-m", "dataflow.runtime.agent", *common]
    with ExitStack() as started:
        started.enter_context(process(master, environment))
        while not (address := read_endpoint(tmp_path)):
            SystemClock().sleep(0.02)
        remote = {**environment, "AKO_CA": str(tmp_path / "tls" / "ca.pem")}
        remote["AKO_TOKEN"] = read_token(tmp_path, Role.READ)
        command = [*agent, "--master", address, "--name"]
        refused = subprocess.run([*command, "a"], env=remote, capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert "error: the master takes this token, but not of a node" in refused.stderr
        remote["AKO_TOKEN"] = read_token(tmp_path, Role.NODE)
        nodes = [started.enter_context(process([*command, name], remote)) for name in ("a", "b")]
        client = started.enter_context(Client(address, read_token(tmp_path), read_authority(tmp_path)))
        while len(client.nodes()) < 2:
            SystemClock().sleep(0.02)
        graph = runtime_job.build(count=1_000_000, pause_s=0.01)
        job = client.submit(JobSpec(name="numbers", graph=graph, nodes=2), make_bundle(HERE))
        next(event for event in client.watch(job) if event.report)
        children = [child for node in nodes for child in processes(f"--parent {node.pid} ")]
        assert len(children) == 2
        addresses = set().union(*map(listening, children))
        assert len(addresses) == 2
        assert not any(map(plain_text_reaches, addresses))
        client.cancel(job)
        assert client.wait(job).state is JobState.CANCELLED


@contextmanager
def process(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is told to leave, and does, at the end of the block."""
    with subprocess.Popen(command, env=environment) as started:
        try:
            yield started
        finally:
            started.terminate()
    assert started.returncode == 0
