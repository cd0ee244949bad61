"""Bandwidth that a node uses, over what the cost model foretells of its own pace, on the hosts of a lab.

    sudo python benchmarks/lab_bandwidth.py --data-dir DIR --json bandwidth.json
    sudo python benchmarks/lab_bandwidth.py --data-dir DIR --p 2 4 8 --rate 20mbit --seconds 20

Topology `ako` without a codec on MNIST's paper network, as in `lab_partitions.py`, with each p in turn; how many
gradients a round has (`every`, r) is its own choice. Foretold is gamma m (n - 1) / (p r) of ako.txt, equation 3:
gamma is a node's pace when nothing holds it back, and the operator that chooses r samples the product twice a second.
Used is what the node's messages have in them, and what its interface has counted, headers and validations among it;
both from the third second on. Links that are full carry less than is foretold, which `blocked` shows: the aim is
0.9 to 1.1 below that, for messages.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from lab_mnist import lab_parser
from lab_partitions import COMMON, MODELS
from own_lab import own_lab

from ako_jobs.jobs import load_job, prepare
from ako_jobs.run import execute
from dataflow import JobEvent
from dataflow.errors import AkoError, JobFailedError
from dataflow.lab import lab
from dataflow.lab.cluster import lab_cluster
from dataflow.lab.plan import Host, LabPlan
from dataflow.quantities import bytes_per_second
from dataflow.reports import NodeStatistics, rates_between, samples_named

SETTLED_S = 2.0
"""Seconds of a run that do not count: r is not chosen yet."""


@dataclass(frozen=True)
class Told:
    """What a node told of itself, and what its interface had sent when that came."""

    statistics: NodeStatistics
    interface_nbytes: int


@dataclass(frozen=True)
class Used:
    """Bytes per second of a node, means over a run: foretold, in messages, on its interface; and share blocked."""

    foretold: float
    messages: float
    interface: float
    blocked: float
    every: float


def measure(plan: LabPlan, state_dir: Path, options: argparse.Namespace, p: str) -> list[Used]:
    """What each node of a run used.

    Args:
        plan: the lab, which is up.
        state_dir: its state directory.
        options: the command line.
        p: partitions, or ``auto``.

    Raises:
        JobFailedError: the run failed.
    """
    told: dict[int, list[Told]] = {}

    def note(event: JobEvent) -> None:
        if event.statistics is not None and event.statistics.running_s >= SETTLED_S:
            host = lab.status(plan)[event.statistics.node]
            told.setdefault(event.statistics.node, []).append(Told(event.statistics, host.sent_nbytes))

    settings, _ = MODELS["paper"]
    words = {"data": "mnist", "data_dir": str(options.data_dir), "warm_start": "0", "time": str(options.seconds)}
    job = COMMON | settings | words | {"epochs": "1000", "schedule": "constant", "validate_every": "60000", "p": p}
    prepared = prepare(load_job("ako"), job, len(plan.hosts))
    result = execute(prepared, on_event=note, cluster=partial(lab_cluster, plan, state_dir))
    if result.interrupted:
        raise KeyboardInterrupt
    if result.reason:
        raise JobFailedError(what="the run failed", got=result.reason, where=f"p={p}")
    return [used(each[0], each[-1]) for _, each in sorted(told.items())]


def used(before: Told, after: Told) -> Used:
    """What a node used between two moments."""
    old, new = before.statistics, after.statistics
    rates = rates_between(old, new)
    return Used(
        foretold=_mean(old, new, "predicted_nbytes_s"),
        messages=(sum(new.sent_nbytes.values()) - sum(old.sent_nbytes.values())) / rates.seconds,
        interface=(after.interface_nbytes - before.interface_nbytes) / rates.seconds,
        blocked=rates.blocked_s / rates.seconds,
        every=_mean(old, new, "every"),
    )


def _mean(before: NodeStatistics, after: NodeStatistics, name: str) -> float:
    """Mean of what an operator sampled between two moments."""
    (first,), (last,) = (samples_named([each], name) for each in (before, after))
    return (last.total - first.total) / (last.count - first.count)


def row(p: str, nodes: list[Used]) -> str:
    """A line on a run: means over its nodes, and the ratios of each."""
    messages, interface = ([each.messages / each.foretold for each in nodes], [e.interface / e.foretold for e in nodes])
    return (
        f"{p:>4}  {mean(each.every for each in nodes):5.1f}  {mean(each.foretold for each in nodes) / 1e6:8.2f} MB/s"
        f"  {mean(messages):.2f} ({min(messages):.2f} to {max(messages):.2f})"
        f"  {mean(interface):.2f} ({min(interface):.2f} to {max(interface):.2f})"
        f"  {mean(each.blocked for each in nodes):7.0%}"
    )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = lab_parser(__doc__)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--p", nargs="+", default=[str(p) for p in range(1, 9)])
    parser.add_argument("--seconds", type=float, default=12.0, help="of a run")
    return parser.parse_args()


def main() -> None:
    options = parse()
    host = Host(rate=bytes_per_second(options.rate), cores=options.cpu or None)
    runs: dict[str, list[Used]] = {}
    with own_lab((host,) * options.hosts) as (plan, state_dir):
        print(f"{'p':>4}  {'r':>5}  {'foretold':>13}  {'messages over it':22}  {'interface over it':22}  blocked")
        for p in options.p:
            runs[p] = measure(plan, state_dir, options, p)
            print(row(p, runs[p]), flush=True)
    if options.json:
        found = {p: [asdict(each) for each in nodes] for p, nodes in runs.items()}
        options.json.write_text(json.dumps({"lab": plan.text, "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except AkoError as error:
        sys.exit(f"error: {error}")
