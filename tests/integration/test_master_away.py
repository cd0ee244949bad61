"""The master dies or is stopped while jobs run, wait and are submitted; its agents and clients are real processes."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import runtime_job
from test_runtime_cluster import ENDLESS, job_processes, processes, submit_endless, until_gone, wait_until_running

from dataflow.clock import SystemClock
from dataflow.engine.job_life import JobState
from dataflow.observe.record import installed_versions, make_record
from dataflow.plan.job import JobSpec
from dataflow.runtime.agent import SILENT_S
from dataflow.runtime.auth import read_token
from dataflow.runtime.bundle import make_bundle
from dataflow.runtime.client import Client
from dataflow.runtime.local_cluster import LocalCluster
from tests.clusters import shared_cluster

HERE = Path(__file__).parent


def end_master(cluster: LocalCluster, number: signal.Signals) -> None:
    os.kill(cluster.processes()["master"], number)


def wait_until_attached(cluster: LocalCluster) -> None:
    while len(cluster.client.nodes()) < cluster.nodes:
        SystemClock().sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_job_goes_on_without_its_master_and_nothing_that_it_says_is_lost_or_doubled(
    tmp_path: Path, number: signal.Signals
) -> None:
    with shared_cluster(2, state_dir=tmp_path) as cluster:
        graph = runtime_job.build(count=300, pause_s=0.02)
        spec = JobSpec(name="numbers", graph=graph, nodes=2)
        job = cluster.client.submit(spec, make_bundle(HERE))
        wait_until_running(cluster.client, job)
        running = job_processes(cluster)
        events = []
        watching = threading.Thread(target=lambda: events.extend(cluster.client.watch(job)))
        watching.start()
        end_master(cluster, number)
        SystemClock().sleep(1.0)
        cluster.restart_master()
        wait_until_attached(cluster)
        assert len(running) == 2
        assert job_processes(cluster) == running
        watching.join()
        kept = [event for event in events if event.statistics is None]
        received = Counter(event.report.fields["received"] for event in kept if event.report)
        assert received == dict.fromkeys(range(1, 301), 4)
        assert [event.index for event in kept] == sorted({event.index for event in kept})
        assert [event.state for event in kept if event.state] == ["SUBMITTED", "DEPLOYING", "RUNNING", "FINISHED"]
        status = cluster.client.job(job)
        ((from_s, to_s),) = status.master_away
        assert 1.0 <= to_s - from_s < 30.0
        files = {name: len(data) for name, data in cluster.client.artifacts(job)}
        assert files == {"node-0/result.bin": 3_000_000, "node-1/result.bin": 3_000_001}
        record = make_record(spec, events, status.statistics, installed_versions())
        (away,) = record["master_away"]  # type: ignore[misc]
        assert 1.0 <= away["to_s"] - away["from_s"] <= to_s - from_s + 1e-6  # type: ignore[index, call-overload, operator]
        lines = [line.text for line in cluster.client.logs(job)]
        assert sorted(lines) == sorted(
            text for node in (0, 1) for text in (f"opened on node-{node}", f"complained on node-{node}")
        )


def test_job_goes_on_through_a_master_that_stands_still_for_longer_than_agents_wait() -> None:
    with shared_cluster(2) as cluster:
        job = submit_endless(cluster.client, 2)
        wait_until_running(cluster.client, job)
        running = job_processes(cluster)
        end_master(cluster, signal.SIGSTOP)
        SystemClock().sleep(SILENT_S + 4.0)
        end_master(cluster, signal.SIGCONT)
        SystemClock().sleep(1.0)
        wait_until_attached(cluster)
        assert cluster.client.job(job).state is JobState.RUNNING
        assert job_processes(cluster) == running
        cluster.client.cancel(job)
        assert cluster.client.wait(job).state is JobState.CANCELLED


def test_job_that_ends_while_the_master_is_away_has_finished_when_it_is_back() -> None:
    with shared_cluster(1) as cluster:
        graph = runtime_job.build(count=50, pause_s=0.02)
        job = cluster.client.submit(JobSpec(name="numbers", graph=graph, nodes=1), make_bundle(HERE))
        wait_until_running(cluster.client, job)
        end_master(cluster, signal.SIGKILL)
        SystemClock().sleep(3.0)
        cluster.restart_master()
        status = cluster.client.wait(job)
        assert (status.state, status.reason) == (JobState.FINISHED, "")
        reports = [event.report for event in cluster.client.watch(job) if event.report]
        assert [report.fields["received"] for report in reports] == list(range(1, 51))
        assert {name: len(data) for name, data in cluster.client.artifacts(job)} == {"node-0/result.bin": 3_000_000}


def test_job_is_cancelled_by_the_master_that_took_it_over_and_its_processes_go() -> None:
    with shared_cluster(2) as cluster:
        job = submit_endless(cluster.client, 2)
        wait_until_running(cluster.client, job)
        running = job_processes(cluster)
        end_master(cluster, signal.SIGKILL)
        cluster.restart_master()
        cluster.client.cancel(job)
        assert cluster.client.wait(job).state is JobState.CANCELLED
        until_gone(running)


def test_submits_through_kills_of_the_master_are_all_acknowledged_and_none_starts_twice() -> None:
    rng = random.Random(7)
    with shared_cluster(1) as cluster, ThreadPoolExecutor() as threads:
        spec = JobSpec(name="short", graph=runtime_job.build(count=2), nodes=1)
        bundle, jobs = make_bundle(HERE), list[str]()
        for _ in range(3):
            operation = secrets.token_hex(8)
            submitted = threads.submit(cluster.client.submit, spec, bundle, operation)
            SystemClock().sleep(rng.uniform(0.0, 0.02))
            end_master(cluster, signal.SIGKILL)
            cluster.restart_master()
            jobs.append(submitted.result())
            assert cluster.client.submit(spec, bundle, operation) == jobs[-1]
        assert [job.id for job in cluster.client.jobs()] == jobs
        for job in jobs:
            assert cluster.client.wait(job).state is JobState.FINISHED
            events = list(cluster.client.watch(job))
            assert [event.state for event in events if event.state].count("RUNNING") == 1
            assert sum(event.report is not None for event in events) == 2


def test_agent_ends_its_jobs_when_the_master_stays_away_for_longer_than_allowed(tmp_path: Path) -> None:
    with shared_cluster(0, state_dir=tmp_path) as cluster:
        command = [sys.executable, "-m", "dataflow.runtime.agent", "--name", "a", "--state-dir", str(tmp_path)]
        with subprocess.Popen([*command, "--end-jobs-after", "0.5", "--die-with", str(os.getpid())]) as agent:
            job = submit_endless(cluster.client, 1)
            wait_until_running(cluster.client, job)
            running = processes(f"--parent {agent.pid} ")
            assert len(running) == 1
            end_master(cluster, signal.SIGKILL)
            until_gone(running)
            cluster.restart_master()
            status = cluster.client.wait(job)
            assert status.state is JobState.FAILED
            assert "node a: its job process ended" in status.reason
            agent.terminate()


def test_client_that_was_never_answered_does_not_wait_and_one_that_was_does_so_as_long_as_it_may(
    tmp_path: Path,
) -> None:
    with shared_cluster(0, state_dir=tmp_path) as cluster:
        clock, address, token = SystemClock(), cluster.client.address, read_token(tmp_path)
        with Client(address, token, patience_s=1.0) as known, Client(address, token) as unknown:
            known.jobs()
            end_master(cluster, signal.SIGKILL)
            began = clock.now()
            with pytest.raises(Exception, match="cannot be reached"):
                known.jobs()
            assert clock.now() - began >= 1.0
            with pytest.raises(Exception, match="cannot be reached"):
                unknown.submit(JobSpec(name="x", graph=runtime_job.build(count=ENDLESS), nodes=1))
