"""How well the simulator foretells what happens in a lab: each job on its hosts, and right after that in virtual time.

    sudo python benchmarks/lab_simulated.py --data-dir DIR [--seeds 0 1 2] [--json FILE]

The simulated cluster is the lab's as it turned out, not as it was ordered. A link of 100 Mbit/s carries 95% of that,
the rest are headers. A host's speed is its share of a core, times how much processor time its gradients took less than
in the simulation: that has its task times from a run of the job on an idle machine, and the cores of a lab are shared
with other hosts, and their caches. One that makes no gradients is as fast as the others on average. A first simulation,
in which nothing else takes time, tells what gradients take there.

Printed are, of each run, the seconds until the target had been held, in the lab and simulated, and the ratios of these,
of images, bytes and staleness; then the median ratios. The aim is a time to accuracy within 15% and bytes within 2%.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from statistics import mean, median
from typing import Any

from lab_mnist import Bench, bench, lab_parser, settings_of
from mnist_one_node import HOLD
from simulated_against_real import figures

from ako_jobs.jobs import load_job, prepare
from ako_jobs.run import execute
from ako_jobs.simulate import execute_simulation, prepare_simulation
from dataflow import ClusterModel, JobState
from dataflow.lab.cluster import lab_cluster
from dataflow.quantities import bytes_per_second

PAYLOAD = 0.95
"""Of what a link carries; the rest are headers of packets."""

COMMON = {"data": "mnist", "holdout": "0", "warm_start": "0", "validate_every": "6000"}

JOBS = (
    "ako p=3 batch=32 lr=0.05 epochs=1.5",
    "ako p=2 every=8 batch=32 lr=0.05 epochs=1.5",
    "ako codec=threshold:density=0.03 p=3 every=5 batch=24 lr=0.1 tau=96 epochs=1.5",
    "all_to_all batch=32 lr=0.05 epochs=1.5",
    "parameter_server servers=1 batch=64 lr=0.1 epochs=1.5",
)
"""What is compared: jobs that the processor limits, and jobs that the links do."""


def both(where: Bench, text: str, seed: int, rate: str, share: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The records of one job, in the lab and simulated."""
    job, _, words = text.partition(" ")
    hosts = len(where.plan.hosts)
    settings = {**COMMON, "data_dir": str(where.data_dir), "seed": str(seed), **settings_of(words)}
    prepared = prepare(load_job(job), settings, hosts)
    result = execute(prepared, cluster=partial(lab_cluster, where.plan, where.state_dir))
    if result.interrupted or result.state is not JobState.FINISHED:
        message = f"{text}, seed {seed}: {result.state} {result.reason}"
        raise SystemExit(message)
    real: Any = result.record
    model = ClusterModel(rate=PAYLOAD * bytes_per_second(rate), tasks=1)
    simulation = prepare_simulation(load_job(job), settings, hosts, model)
    alone = simulation.model.model_copy(update={"engine_s": 0.0, "message_s": 0.0, "byte_s": 0.0})
    bare: Any = execute_simulation(replace(simulation, model=alone)).record
    there, here = pace(bare, "computing_s"), pace(real, "compute_cpu_s")
    speeds = {node: share * there[node] / seconds for node, seconds in here.items()}
    speeds = dict.fromkeys(range(hosts), mean(speeds.values())) | speeds
    found = replace(simulation, model=simulation.model.model_copy(update={"speeds": speeds}))
    simulated: Any = execute_simulation(found).record
    return real, simulated


def pace(record: dict[str, Any], seconds: str) -> dict[int, float]:
    """By node, seconds of compute tasks for each of its gradients; nodes that make none are left out."""
    return {node["node"]: node[seconds] / node["steps"] for node in record["nodes"] if node["steps"]}


def compare(where: Bench, text: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What became of one job with each seed, as lines and as values."""
    found = []
    for seed in options.seeds:
        records = both(where, text, seed, options.rate, options.cpu or 1.0)
        real, simulated = (figures(record, where.target, HOLD) for record in records)
        pairs = {name: (value, simulated[name]) for name, value in real.items()}
        ratios = {name: there / here for name, (here, there) in pairs.items() if here and there}
        words = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        seconds = [f"{value:.1f} s" if value else "never" for value in pairs["seconds to the target"]]
        speeds = ", ".join(f"{speed:.2f}" for speed in records[1]["simulation"]["speeds"].values())
        print(f"{text}, seed {seed}: {seconds[0]}, simulated {seconds[1]}; {words}; speeds {speeds}", flush=True)
        found.append({"job": text, "seed": seed, "figures": pairs, "ratios": ratios})
    return found


def parse() -> argparse.Namespace:
    """The command line."""
    parser = lab_parser(__doc__)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), metavar='"JOB KEY=VALUE ..."')
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--target", type=float, default=0.97, help="accuracy to be held")
    return parser.parse_args()


def main() -> None:
    options = parse()
    options.limit, options.validate_every, options.first_validates = 0.0, 0, False
    found: list[dict[str, Any]] = []
    with bench(options) as where:
        for text in options.jobs:
            runs = compare(where, text, options)
            found += runs
            for name in runs[0]["figures"]:
                ratios = [run["ratios"][name] for run in runs if name in run["ratios"]]
                if ratios:
                    print(f"    {name:24} median {median(ratios):.3f} of {len(ratios)}")
            if options.json:
                common = {"hosts": options.hosts, "cpu": options.cpu, "rate": options.rate, "target": options.target}
                options.json.write_text(json.dumps(common | {"runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
