"""kill -9 of the master: at random moments of submits, and while a job runs.

    python benchmarks/faults_master.py [--submits 50] [--kills 10] [--away 5] [--json FILE]

submits: each is made with an operation id, and the master is killed up to 20 ms after its beginning and started again
at once. Counted: submits that were not acknowledged, acknowledged jobs that the last master does not know, jobs that
began to run more or less often than once, and jobs that said something else than they should have.

running: a job of two nodes runs while the master is killed and started again, again and again. Nodes say when they
received what, on the machine's monotonic clock; that reaches the master late, and whole. Printed: numbers received per
second while the master was there and while it was away, seconds until both nodes were attached again, counted from the
moment the new master served (and from its start), and whether the job had the same processes at the end, all reports
once, and the same sum on all nodes, if they had the time to give each other all that was under way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import faults_master_job as job_of_benchmark

from dataflow import JobSpec, LocalCluster, SystemClock, make_bundle
from dataflow.errors import AkoError

HERE, CLOCK, NODES = Path(__file__).parent, SystemClock(), 2
LATEST_KILL_S = 0.02
ENDLESS = 1 << 40


def submits(count: int, seed: int) -> dict[str, Any]:
    rng, jobs, unanswered = random.Random(seed), list[str](), 0
    spec, bundle = JobSpec(name="short", graph=job_of_benchmark.build(4, 2), nodes=1), make_bundle(HERE)
    with LocalCluster(nodes=1, tasks=1) as cluster, ThreadPoolExecutor() as threads:
        for _ in range(count):
            submitted = threads.submit(cluster.client.submit, spec, bundle, secrets.token_hex(16))
            CLOCK.sleep(rng.uniform(0.0, LATEST_KILL_S))
            kill(cluster)
            cluster.restart_master()
            try:
                jobs.append(submitted.result())
            except AkoError:
                unanswered += 1
        known = {job.id for job in cluster.client.jobs()}
        events = [list(cluster.client.watch(job)) for job in jobs if job in known]
    begun = [sum(event.state == "RUNNING" for event in each) for each in events]
    said = [[event.report.fields["received"] for event in each if event.report] for each in events]
    return {
        "submits": count,
        "not acknowledged": unanswered,
        "acknowledged and lost": len(set(jobs) - known),
        "twice in the queue": len(known) - len(set(jobs)),
        "not started once": sum(number != 1 for number in begun),
        "said something else": sum(numbers != [2, 4, 4] for numbers in said),
    }


def running(kills: int, away_s: float) -> dict[str, Any]:
    attached, served, gaps = list[float](), list[float](), list[tuple[float, float]]()
    with LocalCluster(nodes=NODES, tasks=1) as cluster:
        client = cluster.client
        graph = job_of_benchmark.build(ENDLESS, 10)
        job = client.submit(JobSpec(name="long", graph=graph, nodes=NODES), make_bundle(HERE))
        next(event for event in client.watch(job) if event.report)
        before, begun_s = job_processes(cluster), CLOCK.now()
        for _ in range(kills):
            CLOCK.sleep(away_s)
            gone_s = CLOCK.now()
            kill(cluster)
            CLOCK.sleep(away_s)
            gaps.append((gone_s, CLOCK.now()))
            cluster.restart_master()
            client.jobs()
            answered_s = CLOCK.now()
            while len(client.nodes()) < NODES:
                CLOCK.sleep(0.01)
            attached.append(CLOCK.now() - answered_s)
            served.append(CLOCK.now() - gaps[-1][1])
        same = job_processes(cluster) == before
        client.cancel(job)
        ended = client.wait(job)
        reports = [(event.node, event.report.fields) for event in client.watch(job) if event.report]
    received = [[fields["received"] for each, fields in reports if each == node] for node in range(NODES)]
    whole = [numbers[:-1] == list(range(10, numbers[-2] + 1, 10)) for numbers in received]
    ends = {(fields["received"], fields["total"]) for fields in dict(reports).values()}
    there = [(begun_s, gaps[0][0]), *((end, start) for (_, end), (start, _) in pairwise(gaps))]
    with_master, without = rate(reports, there), rate(reports, gaps)
    return {
        "kills": kills,
        "state": f"{ended.state}: {ended.reason}",
        "same processes": same,
        "no report lost or doubled": all(whole),
        "nodes have the same sum": None if "killed" in ended.reason else len(ends) == 1,
        "received per s with the master": round(with_master, 1),
        "received per s without": round(without, 1),
        "of that": round(without / with_master, 3),
        "attached after it served, s (median, largest)": [round(median(attached), 2), round(max(attached), 2)],
        "attached after its start, s (median, largest)": [round(median(served), 2), round(max(served), 2)],
    }


def rate(reports: Sequence[tuple[int, dict[str, Any]]], spans: Sequence[tuple[float, float]]) -> float:
    """Numbers received per second by all nodes within the spans, between the first and the last report in each."""
    received, seconds = 0.0, 0.0
    for node in range(NODES):
        told = sorted((fields["at_s"], fields["received"]) for each, fields in reports if each == node)
        times = [at_s for at_s, _ in told]
        for start, end in spans:
            first, last = bisect_right(times, start), bisect_right(times, end) - 1
            if last > first:
                received += told[last][1] - told[first][1]
                seconds += times[last] - times[first]
    return NODES * received / seconds if seconds else 0.0


def kill(cluster: LocalCluster) -> None:
    os.kill(cluster.processes()["master"], signal.SIGKILL)


def job_processes(cluster: LocalCluster) -> set[int]:
    """Ids of the processes that the agents have started."""
    agents = {str(pid) for name, pid in cluster.processes().items() if name != "master"}
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[1] in agents:
                found.add(int(path.parent.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--submits", type=int, default=50)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--away", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    if options.submits:
        result["submits"] = submits(options.submits, options.seed)
    if options.kills:
        result["running"] = running(options.kills, options.away)
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
