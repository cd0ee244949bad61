"""How well the simulator foretells what happens in a lab: each job on its hosts, and right after that in virtual time.

    sudo python benchmarks/lab_simulated.py --data-dir DIR [--seeds 0 1 2] [--json FILE]

The simulated cluster is the lab's as it turned out, not as it was ordered: a link of 100 Mbit/s carries 95% of that,
the rest are headers, and the speed of a host is the share of a core that its gradients got while they were computed
(`compute_cpu_s` over `computing_s` of each node's statistics). Task times are measured right before each simulation,
on the processor that has just run the lab: the machine's moods are further apart than what is to be found out.

Printed are, of each run, the seconds until the target had been held, in the lab and simulated, and the ratios of these,
of images, bytes and staleness; then the median ratios. The aim is a time to accuracy within 15% and bytes within 2%.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from lab_mnist import Bench, bench, settings_of
from simulated_against_real import figures

from ako_jobs.jobs import load_job, prepare
from ako_jobs.run import execute
from ako_jobs.simulate import execute_simulation, prepare_simulation
from dataflow import ClusterModel
from dataflow.lab.cluster import lab_cluster
from dataflow.quantities import bytes_per_second

HOLD = 2
PAYLOAD = 0.95
"""Of what a link carries; the rest are headers of packets."""

COMMON = {"data": "mnist", "holdout": "0", "warm_start": "0", "validate_every": "6000"}

JOBS = (
    "ako p=3 batch=32 lr=0.05 epochs=1.5",
    "ako p=2 every=8 batch=32 lr=0.05 epochs=1.5",
    "ako p=2 every=64 batch=32 lr=0.05 epochs=1.5",
    "ako codec=threshold:density=0.03 p=3 every=5 batch=24 lr=0.1 tau=96 epochs=1.5",
    "all_to_all batch=32 lr=0.05 epochs=1.5",
    "parameter_server servers=1 batch=64 lr=0.1 epochs=1.5",
    "parameter_server servers=all batch=64 lr=0.1 epochs=1.5",
)
"""What is compared: jobs that the processor limits, and jobs that the links do."""


def both(where: Bench, text: str, seed: int, rate: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The records of one job, in the lab and simulated."""
    job, _, words = text.partition(" ")
    hosts = len(where.plan.hosts)
    settings = {**COMMON, "data_dir": str(where.data_dir), "seed": str(seed), **settings_of(words)}
    prepared = prepare(load_job(job), settings, hosts)
    real: Any = execute(prepared, cluster=partial(lab_cluster, where.plan, where.state_dir)).record
    speeds = {
        node["node"]: node["compute_cpu_s"] / node["computing_s"] for node in real["nodes"] if node["computing_s"]
    }
    model = ClusterModel(rate=PAYLOAD * bytes_per_second(rate), speeds=speeds, tasks=1)
    simulated: Any = execute_simulation(prepare_simulation(load_job(job), settings, hosts, model)).record
    return real, simulated


def compare(where: Bench, text: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What became of one job with each seed, as lines and as values."""
    found = []
    for seed in options.seeds:
        records = both(where, text, seed, options.rate)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the MNIST files")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--cpu", type=float, default=0.4, help="cores of each host; 0: no share")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), metavar='"JOB KEY=VALUE ..."')
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--target", type=float, default=0.97, help="accuracy to be held")
    parser.add_argument("--json", type=Path, help="write everything there")
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
                options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
