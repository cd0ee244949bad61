"""How well the simulator foretells what happens in a lab: each job on its hosts, and right after that in virtual time.

    sudo python benchmarks/lab_simulated.py --data-dir DIR [--seeds 0 1 2] [--json FILE]

The simulated cluster is the lab's as it turns out in a short run of the job, with a seed of its own, and not as it was
ordered. A link of 100 Mbit/s carries 95% of that, the rest are headers. Hosts share this machine's cores, of which each
has its share, in slices. Links are shared as TCP shares them. Times of tasks are measured on the idle machine, once for
all seeds; a host's speed is by how many times as much processor time its gradients took in the lab, where hosts share
caches. One that makes no gradients is as fast as the others on average. What a node does besides computing, in Python,
is held up more by this than kernels are: tasks of the network, engine and messages take so many times as long as the
processor time of the short run says, of all hosts on average, and never less than on the idle machine.

Printed are, of each run, the seconds until the target had been held, in the lab and simulated, and the ratios of these,
of images, bytes and staleness; then the median ratios. The aim is a time to accuracy within 15% and bytes within 2%.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import Any

from lab_mnist import Bench, bench, lab_parser, settings_of
from mnist_one_node import HOLD
from simulated_against_real import figures

from ako_jobs.jobs import Prepared, load_job, prepare
from ako_jobs.run import execute
from ako_jobs.simulate import Simulation, execute_simulation, prepare_simulation
from dataflow import ClusterModel, JobState
from dataflow.lab.cluster import lab_cluster
from dataflow.plan.compile import chains
from dataflow.quantities import bytes_per_second
from dataflow.sim.costs import TaskKind
from dataflow.sim.simulator import Simulator

CORES = len(os.sched_getaffinity(0))
"""Those of the machine, which the hosts share."""

PAYLOAD = 0.95
"""Of what a link carries; the rest are headers of packets."""

LOOK_SEED, LOOK_EPOCHS = 100, 0.5
"""Of the run by which the lab is known."""

COMMON = {"data": "mnist", "holdout": "0", "warm_start": "0", "average": "0", "validate_every": "6000"}

JOBS = (
    "ako p=3 batch=32 lr=0.05 epochs=1.5",
    "ako p=2 every=8 batch=32 lr=0.05 epochs=1.5",
    "ako codec=threshold:density=0.03 p=3 every=5 batch=24 lr=0.1 tau=96 epochs=1.5",
    "all_to_all batch=32 lr=0.05 epochs=1.5",
    "parameter_server servers=1 batch=64 lr=0.1 epochs=1.5",
)
"""What is compared: jobs that the processor limits, and jobs that the links do."""


@dataclass(frozen=True)
class Found:
    """How a lab's hosts turned out in a short run of a job.

    Args:
        model: hosts of these speeds, with what engine and messages take on them.
        means: seconds of tasks by kind.
        beside: how many times as long as on an idle machine takes what a host does besides computing.
    """

    model: ClusterModel
    means: Mapping[TaskKind, float]
    beside: float

    def to_json(self) -> dict[str, Any]:
        """What is told of them."""
        return {"speeds": self.model.speeds, "beside": self.beside}


def look(where: Bench, text: str, rate: str) -> Found:
    """Run a job for a while, with a seed of its own, and see how the hosts turn out."""
    real = in_lab(where, text, LOOK_SEED, epochs=LOOK_EPOCHS)
    simulation = prepared_like(where, text, LOOK_SEED, rate, epochs=LOOK_EPOCHS)
    model = simulation.model
    free = model.model_copy(update={"engine_s": 0.0, "message_s": 0.0, "byte_s": 0.0, "cpu": 2.0, "cores": None})
    run = Simulator(simulation.prepared.spec, free, simulation.means).run()
    pairs = list(zip(run.statistics, real["nodes"], strict=True))
    slower = {
        there.node: here["compute_cpu_s"] / here["steps"] / (there.busy_s["compute"] / there.steps)
        for there, here in pairs
        if there.steps
    }
    slower = dict.fromkeys(range(len(pairs)), mean(slower.values())) | slower
    moved = [sum(there.sent_nbytes.values()) + sum(there.received_nbytes.values()) for there, _ in pairs]
    more = sum(there.steps for there, _ in pairs) / real["totals"]["gradients"]
    beside = []
    for there, here in pairs:
        messages = 2 * run.messages * moved[there.node] / sum(moved)  # sent and received, by their part of the bytes
        told_s = there.busy_s["network"] + there.tasks * model.engine_s
        told_s += messages * model.message_s + moved[there.node] * model.byte_s
        took_s = (here["cpu_s"] - here["compute_cpu_s"]) / slower[there.node]
        beside.append(more * took_s / told_s)
    return slowed(simulation, {node: 1 / times for node, times in slower.items()}, max(1.0, mean(beside)))


def slowed(simulation: Simulation, speeds: Mapping[int, float], beside: float) -> Found:
    """Hosts of these speeds, on which what is not computing takes `beside` times as long as in a simulation."""
    model = simulation.model
    costs = {name: beside * getattr(model, name) for name in ("engine_s", "message_s", "byte_s")}
    computing = {chain.head for chain in chains(simulation.prepared.spec.graph) if chain.pool == "compute"}
    means = {
        kind: seconds if kind.chain in computing else beside * seconds for kind, seconds in simulation.means.items()
    }
    return Found(model.model_copy(update={"speeds": speeds, **costs}), means, beside)


def in_lab(where: Bench, text: str, seed: int, **more: object) -> dict[str, Any]:
    """The record of a job in the lab."""
    prepared = prepared_in(where, text, seed, **more)
    result = execute(prepared, cluster=partial(lab_cluster, where.plan, where.state_dir))
    if result.interrupted or result.state is not JobState.FINISHED:
        message = f"{text}, seed {seed}: {result.state} {result.reason}"
        raise SystemExit(message)
    record: Any = result.record
    return record


def prepared_in(where: Bench, text: str, seed: int, **more: object) -> Prepared:
    """A job with its settings, ready for as many nodes as the lab has hosts."""
    return prepare(load_job(text.split(maxsplit=1)[0]), settings_in(where, text, seed, **more), len(where.plan.hosts))


def prepared_like(where: Bench, text: str, seed: int, rate: str, **more: object) -> Simulation:
    """A job as it is run in the lab, ready to be simulated on hosts with links like the lab's."""
    payload = PAYLOAD * bytes_per_second(rate)
    model = ClusterModel(rate=payload, shares="tcp", tasks=1, cpu=where.plan.hosts[0].cores, cores=CORES)
    settings = settings_in(where, text, seed, **more)
    return prepare_simulation(load_job(text.split(maxsplit=1)[0]), settings, len(where.plan.hosts), model)


def settings_in(where: Bench, text: str, seed: int, **more: object) -> dict[str, str]:
    """A job's settings."""
    told = settings_of(text.partition(" ")[2]) | {key: str(value) for key, value in more.items()}
    return {**COMMON, "data_dir": str(where.data_dir), "seed": str(seed), **told}


def compare(where: Bench, text: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What became of one job with each seed, as lines and as values."""
    found = look(where, text, options.rate)
    words = ", ".join(f"{speed:.2f}" for speed in found.model.speeds.values())
    print(f"{text}: speeds {words}; what is done beside computing takes {found.beside:.2f} times as long")
    runs = []
    for seed in options.seeds:
        real = figures(in_lab(where, text, seed), where.target, HOLD)
        record: Any = execute_simulation(Simulation(prepared_in(where, text, seed), found.model, found.means)).record
        simulated = figures(record, where.target, HOLD)
        pairs = {name: (value, simulated[name]) for name, value in real.items()}
        ratios = {name: there / here for name, (here, there) in pairs.items() if here and there}
        words = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        seconds = [f"{value:.1f} s" if value else "never" for value in pairs["seconds to the target"]]
        print(f"{text}, seed {seed}: {seconds[0]}, simulated {seconds[1]}; {words}", flush=True)
        runs.append({"job": text, "seed": seed, "found": found.to_json(), "figures": pairs, "ratios": ratios})
    return runs


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
