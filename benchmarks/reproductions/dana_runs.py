"""Tables 2 and 6 of dana.txt in shape, and figure 2(b): accuracy and gap of update rules over workers, simulated on MNIST.

Each run is a line of JSON in a file; runs that are there already are not made again, so that this may be stopped and
called again. See docs/reproductions-dana.md:

    python benchmarks/reproductions/dana_runs.py --data /path/to/mnist --out dana.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ako_jobs.simulate import simulate
from dataflow import ClusterModel

RULES: dict[str, dict[str, Any]] = {
    "dana-dc": {"momentum": 0.9},
    "dana-slim": {"momentum": 0.9},
    "dana-zero": {"momentum": 0.9},
    "dc-asgd": {"momentum": 0.95},
    "multi-asgd": {"momentum": 0.9},
    "nag-asgd": {"momentum": 0.9},
    "lwp": {"momentum": 0.9},
    "yellowfin": {},
    "asgd": {},
    "staleness-aware": {},
    "gap-aware": {},
    "easgd": {},
    "ssgd": {"momentum": 0.9, "nesterov": True},
}
SETTINGS: dict[str, Any] = {"data": "mnist", "epochs": 2, "warmup": 1, "warm_start": 0, "holdout": 0.1, "batch": 16}


def one(rule: str, workers: int, seed: int, lr: float, compute: str, data: str) -> dict[str, Any]:
    """A run: its accuracies in percent, and the mean lag, gap and normalised gap of all gradients of all workers."""
    settings = {**SETTINGS, **RULES[rule], "rule": rule, "lr": lr, "seed": seed, "data_dir": data}
    model = ClusterModel(compute=compute, step_s=0.01, rate=1e12, latency_s=0.0)
    began = time.process_time()
    result = simulate("parameter_server", settings, nodes=workers + 1, model=model)
    found = [report["accuracy"] for report in result.reports if report.get("port") == "validate.results"]
    return {
        "rule": rule,
        "workers": workers,
        "seed": seed,
        "lr": lr,
        "compute": compute,
        "state": result.state,
        "accuracy": 100 * found[-1] if found else None,
        "epochs": [100 * accuracy for accuracy in found],
        "staleness": staleness(result.record),
        "virtual_s": result.record["elapsed_s"] if "elapsed_s" in result.record else None,
        "cpu_s": round(time.process_time() - began, 1),
        "reason": result.reason,
    }


def staleness(record: dict[str, Any]) -> dict[str, float]:
    """Means over all workers' samples, by name."""
    found = {}
    for name in ("lag", "gap", "normalised_gap"):
        samples = [node["samples"].get(f"load.{name}") for node in record["nodes"]]
        told = [sample for sample in samples if sample]
        if told:
            found[name] = sum(each["mean"] * each["count"] for each in told) / sum(each["count"] for each in told)
    return found


def runs(path: Path) -> Iterator[dict[str, Any]]:
    """The runs that a file holds."""
    if path.exists():
        yield from (json.loads(line) for line in path.read_text().splitlines())


def main() -> None:
    """Make the runs that are asked for and not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the MNIST files")
    parser.add_argument("--out", type=Path, default=Path("dana.jsonl"))
    parser.add_argument("--rules", nargs="*", default=[*RULES], choices=[*RULES])
    parser.add_argument("--workers", nargs="*", type=int, default=[1, 8, 16, 32])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--lr", nargs="*", type=float, default=[0.006])
    parser.add_argument("--compute", nargs="*", default=["gamma"], choices=["gamma", "gamma-heterogeneous"])
    asked = parser.parse_args()
    keys = ("rule", "workers", "seed", "lr", "compute")
    done = {tuple(run[key] for key in keys) for run in runs(asked.out)}
    for compute in asked.compute:
        for workers in asked.workers:
            for lr in asked.lr:
                for seed in asked.seeds:
                    for rule in asked.rules:
                        if (rule, workers, seed, lr, compute) in done:
                            continue
                        run = one(rule, workers, seed, lr, compute, asked.data)
                        with asked.out.open("a") as file:
                            file.write(json.dumps(run) + "\n")
                        print(rule, workers, seed, lr, compute, run["accuracy"], run["staleness"], run["cpu_s"], flush=True)


if __name__ == "__main__":
    main()
