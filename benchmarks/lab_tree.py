"""The experiment of parameter_sharing_tree.txt, 4, scaled down on the hosts of a lab: who converges, and when.

    sudo python benchmarks/lab_tree.py --json tree.json
    sudo python benchmarks/lab_tree.py --hosts 4 --updates 12 --shapes star

The paper has ten machines, links of 1 Gbit/s, a model of 12 MB, three workers on each machine that make an update a
second, sixty times, and servers that tell their neighbours what has changed every second. Here links have 16 Mbit/s,
and a sum 240 kB, told every second (`flow=period`): the first host of a star of ten sends and receives 2.16 MB/s, more
than the 2 MB/s of its link; of one of eight 1.68 MB/s. Each node makes three updates a second, 180 in all.

A node that has made its last update tells its neighbours so at once, behind whatever waits, and not a second later.

Told is the time from the last update of any node until every node's belief holds all updates of all nodes, by the
master's clock; and the most updates that a node has lacked, on average over nodes, in each node's updates.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from own_lab import own_lab

from ako_jobs.jobs import load_job, prepare
from dataflow.engine.job_life import JobState
from dataflow.errors import JobFailedError
from dataflow.lab.cluster import lab_cluster
from dataflow.lab.plan import Host, LabPlan
from dataflow.observe.events import JobEvent
from dataflow.quantities import bytes_per_second

JOB = Path(__file__).resolve().parent / "lab_tree_job.py"
SHAPES = ("star", "chain", "twin_masters")


@dataclass(frozen=True)
class Run:
    """What a run showed.

    Args:
        shape: the topology.
        hosts: how many.
        converged_s: seconds from the last update until every node had all of them.
        gap: the largest number of updates that a node lacked, on average over nodes, over what one node makes a second.
        gaps: seconds since the start, and that number then.
        sent_nbytes: of messages, of all nodes together.
    """

    shape: str
    hosts: int
    converged_s: float
    gap: float
    gaps: list[tuple[float, float]]
    sent_nbytes: int


def convergence(events: Iterable[JobEvent], nodes: int, updates: int) -> float:
    """Seconds from the last update of all until every node had them.

    Raises:
        JobFailedError: a node never did.
    """
    last_s, whole_s = 0.0, dict.fromkeys(range(nodes), float("inf"))
    for event in events:
        if event.report is None:
            continue
        fields = event.report.fields
        if fields.get("last"):
            last_s = max(last_s, event.elapsed_s)
        elif fields.get("updates") == nodes * updates:
            whole_s[event.node] = min(whole_s[event.node], event.elapsed_s)
    lacking = [node for node, at_s in whole_s.items() if at_s == float("inf")]
    if lacking:
        raise JobFailedError(what="nodes ended without all updates", got=lacking)
    # A node may have all before who made the last one has said so.
    return max(0.0, max(whole_s.values()) - last_s)


def gaps(events: Iterable[JobEvent], nodes: int, updates: int, pace_s: float) -> list[tuple[float, float]]:
    """Seconds, and the updates that a node lacks then on average, over the updates that one node makes in a second.

    What was made by then is taken from the pace.
    """
    have, found = dict.fromkeys(range(nodes), 0), list[tuple[float, float]]()
    for event in events:
        if event.report is None or event.report.fields.get("last"):
            continue
        known = event.report.fields.get("updates")
        have[event.node] = known if isinstance(known, int) else 0
        made = min(updates, event.elapsed_s / pace_s)
        lacking = nodes * made - sum(have.values()) / nodes
        found.append((event.elapsed_s, max(0.0, lacking) * pace_s / nodes))
    return found


def run(shape: str, plan: LabPlan, state_dir: Path, settings: dict[str, Any]) -> Run:
    """A run on all hosts of a lab that is up.

    Raises:
        JobFailedError: the job failed, and why.
    """
    nodes = len(plan.hosts)
    prepared = prepare(load_job(str(JOB)), {**settings, "topology": shape}, nodes)
    with lab_cluster(plan, state_dir, nodes) as cluster:
        job = cluster.client.submit(prepared.spec, prepared.bundle)
        events = list(cluster.client.watch(job))
        status = cluster.client.job(job)
    if status.state is not JobState.FINISHED:
        raise JobFailedError(what=status.reason, where=shape)
    updates, pace_s = int(settings["updates"]), float(settings["pace_s"])
    curve = gaps(events, nodes, updates, pace_s)
    sent = sum(sum(each.sent_nbytes.values()) for each in status.statistics)
    return Run(shape, nodes, convergence(events, nodes, updates), max(gap for _, gap in curve), curve, sent)


def table(runs: Sequence[Run]) -> str:
    """Rows in Markdown: seconds to converge, and the largest gap."""
    shapes = list(dict.fromkeys(each.shape for each in runs))
    lines = [f"| hosts | {' | '.join(shapes)} |", f"| --- |{' --- |' * len(shapes)}"]
    for hosts in sorted({each.hosts for each in runs}):
        found = {each.shape: each for each in runs if each.hosts == hosts}
        cells = [
            f"{found[shape].converged_s:.1f} ({found[shape].gap:.1f})" if shape in found else "" for shape in shapes
        ]
        lines.append(f"| {hosts} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run them all, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", nargs="+", type=int, default=[4, 8, 10])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--rate", default="16mbit", help="of each link")
    parser.add_argument("--nbytes", type=int, default=240_000, help="of a sum")
    parser.add_argument("--updates", type=int, default=180, help="of each node")
    parser.add_argument("--pace", type=float, default=1 / 3, help="seconds between two updates of a node")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two sums for a neighbour")
    parser.add_argument("--flow", choices=["period", "newest"], default="period")
    parser.add_argument("--json", type=Path, help="write everything there")
    options = parser.parse_args()
    settings = {
        "flow": options.flow,
        "period_s": options.period,
        "nbytes": options.nbytes,
        "updates": options.updates,
        "pace_s": options.pace,
    }
    runs: list[Run] = []
    for hosts in options.hosts:
        with own_lab((Host(rate=bytes_per_second(options.rate)),) * hosts) as (plan, state_dir):
            for shape in options.shapes:
                runs.append(run(shape, plan, state_dir, settings))
                print(f"{shape}, {hosts} hosts: {runs[-1].converged_s:.2f} s to converge", flush=True)
                if options.json:
                    found = {"rate": options.rate, **settings, "runs": [asdict(each) for each in runs]}
                    options.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\nseconds to converge (largest gap, in seconds of updates)\n\n" + table(runs))


if __name__ == "__main__":
    main()
