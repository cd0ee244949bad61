"""A tree job whose tree is changed while it runs: what that costs in accuracy, and how long nodes make no gradient.

    python benchmarks/tree_change.py --data-dir DIR --json change.json
    python benchmarks/tree_change.py --data-dir DIR --nodes 6 --to edges.txt

A chain trains on MNIST on this machine, one process for each node; when a third of the gradients have been made the
client asks for another tree. The same job goes on without a change, for comparison. Each node tells the longest time
between two of its gradients, every twenty gradients. While the tree is changed are the reports from the moment at which
the change was asked for until a second after it was settled; what is usual is the longest gap of each node in spans of
that length before it, and the largest of these. No node validates before the end: the gaps would show that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ako_jobs.jobs import load_job, prepare
from dataflow.engine.job_life import JobState
from dataflow.errors import JobFailedError
from dataflow.observe.events import AdjustmentStep, JobEvent
from dataflow.runtime.client import Client
from dataflow.runtime.local_cluster import LocalCluster
from operators.topology import parse_topology

JOB = Path(__file__).resolve().parent / "tree_change_job.py"
IMAGES, BATCH = 60_000, 16
AFTER_S = 1.0
"""Seconds after a change is settled that still count."""


@dataclass(frozen=True)
class Run:
    """What a run showed.

    Args:
        seed: of the job.
        changed: whether the tree was.
        accuracy: on the test images, in the end, in percent.
        touched: nodes of the part that was changed.
        change_s: seconds from when it was asked for until it was settled.
        inside_s, outside_s: the longest time between two gradients of a node of that part, and of another, meanwhile.
        usual_s: and of any node before, in as long a span.
    """

    seed: int
    changed: bool
    accuracy: float
    touched: tuple[int, ...] = ()
    change_s: float = 0.0
    inside_s: float = 0.0
    outside_s: float = 0.0
    usual_s: float = 0.0


def longest(gaps: Sequence[tuple[float, int, float]], nodes: Sequence[int], since_s: float, until_s: float) -> float:
    """The longest of some nodes' gaps that were told in a span of time; 0 if there are none."""
    return max((gap for at, node, gap in gaps if node in nodes and since_s <= at < until_s), default=0.0)


def watched(client: Client, job: str, to: str, change_at: int) -> tuple[list[JobEvent], list[JobEvent]]:
    """Events of a job, and the steps of the change that it was asked for after so many gradients; 0: none was."""
    events, steps, asked = list[JobEvent](), list[JobEvent](), change_at == 0
    made: dict[int, int] = {}
    for event in client.watch(job):
        events.append(event)
        if event.adjustment is not None:
            steps.append(event)
        if event.report is not None and "longest_s" in event.report.fields:
            made[event.node] = made.get(event.node, 0) + 1
            if not asked and min(made.values()) >= change_at:
                client.adjust(job, parse_topology(to).model_dump_json())
                asked = True
    return events, steps


def run(client: Client, options: argparse.Namespace, seed: int, *, change: bool) -> Run:
    """One job, from its submission to its end.

    Raises:
        JobFailedError: it failed, or the tree was not changed.
    """
    settings: dict[str, Any] = {
        "topology": options.topology,
        "data": "mnist",
        "data_dir": str(options.data_dir),
        "epochs": options.epochs,
        "schedule": "cosine",
        "average": 0,
        "validate_every": 10**9,
        "seed": seed,
    }
    prepared = prepare(load_job(str(JOB)), settings, options.nodes)
    job = client.submit(prepared.spec, prepared.bundle)
    change_at = int(options.epochs * IMAGES / BATCH / options.nodes / 3 / 20) if change else 0
    events, steps = watched(client, job, options.to, change_at)
    status = client.job(job)
    last: AdjustmentStep | None = steps[-1].adjustment if steps else None
    if status.state is not JobState.FINISHED or (change and (last is None or last.stage != "settled")):
        raise JobFailedError(what=status.reason or f"the tree was not changed: {last}", where=job)
    found = [event.report.fields["accuracy"] for event in events if event.report and "accuracy" in event.report.fields]
    accuracy = 100 * float(found[-1])  # type: ignore[arg-type]
    if last is None:
        return Run(seed, changed=False, accuracy=accuracy)
    gaps = [
        (event.elapsed_s, event.node, float(event.report.fields["longest_s"]))  # type: ignore[arg-type]
        for event in events
        if event.report is not None and "longest_s" in event.report.fields
    ]
    begun_s, settled_s = steps[0].elapsed_s, steps[-1].elapsed_s
    every, inside = range(options.nodes), last.touched
    outside = [node for node in every if node not in inside]
    until_s = settled_s + AFTER_S
    return Run(
        seed,
        changed=True,
        accuracy=accuracy,
        touched=tuple(inside),
        change_s=settled_s - begun_s,
        inside_s=longest(gaps, inside, begun_s, until_s),
        outside_s=longest(gaps, outside, begun_s, until_s),
        usual_s=longest(gaps, every, begun_s - (until_s - begun_s), begun_s),
    )


def main() -> None:
    """Run them all, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the MNIST files")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--topology", default="chain", help="at the start")
    parser.add_argument("--to", default="star", help="what it is changed to")
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--json", type=Path, help="write everything there")
    options = parser.parse_args()
    runs: list[Run] = []
    with LocalCluster(nodes=options.nodes, tasks=1) as cluster:
        for seed in options.seeds:
            for change in (False, True):
                runs.append(run(cluster.client, options, seed, change=change))
                print(runs[-1], flush=True)
                if options.json:
                    options.json.write_text(json.dumps([asdict(each) for each in runs], indent=1) + "\n")


if __name__ == "__main__":
    main()
