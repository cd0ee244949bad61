"""Tables 2 and 6 of dana.txt in shape, and figure 2(b): accuracy and gap of update rules over workers, simulated.

    python benchmarks/reproductions/dana_runs.py --data /path/to/mnist --out dana.jsonl

Each run is a line of JSON in the file; runs that are there are not made again, so this may be stopped and called
again, with some rules, workers, seeds or rates only. At the end it prints the file's runs as tables. With
`--data-set cifar10` the folder is that of CIFAR-10; cifar10_from_jpeg.py makes one of a copy as JPEG files.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ako_jobs.simulate import simulate
from dataflow import ClusterModel

RULES: dict[str, dict[str, Any]] = {
    "dana-dc": {"momentum": 0.9},
    "dana-slim": {"momentum": 0.9},
    "dana-zero": {"momentum": 0.9},
    "multi-asgd": {"momentum": 0.9},
    "nag-asgd": {"momentum": 0.9},
    "lwp": {"momentum": 0.9},
    "dc-asgd": {"momentum": 0.95},
    "yellowfin": {},
    "asgd": {},
    "staleness-aware": {},
    "gap-aware": {},
    "easgd": {},
    "ssgd": {"momentum": 0.9, "nesterov": True},
}
SETTINGS: dict[str, Any] = {"average": 0, "warmup": 1, "warm_start": 0, "holdout": 0.1, "batch": 16}
COMPENSATED = ("dana-dc", "dc-asgd")
"""Rules that have a lambda."""
KEYS = ("compute", "workers", "lr", "seed", "rule", "data_set", "model", "epochs", "dc_lambda")
CHANCE = 10.0
"""Accuracy in percent that a run counts with whose loss was no number any more."""


def one(
    compute: str,
    workers: int,
    lr: float,
    seed: int,
    rule: str,
    data_set: str,
    model: str,
    epochs: float,
    dc_lambda: float,
    folder: str,
) -> dict[str, Any]:
    """A run: its accuracies in percent, gradients by worker, and the means of the staleness of all of these."""
    data = {"data": data_set, "data_dir": folder, "model": model, "epochs": epochs}
    settings = {**SETTINGS, **RULES[rule], **data, "rule": rule, "lr": lr, "seed": seed}
    if rule in COMPENSATED:
        settings["dc_lambda"] = dc_lambda
    cluster = ClusterModel.model_validate({"compute": compute, "step_s": 0.01, "rate": 1e12, "latency_s": 0.0})
    began = time.process_time()
    result = simulate("parameter_server", settings, nodes=workers + 1, model=cluster)
    found = [100 * report["accuracy"] for report in result.reports if report["port"] == "validate.results"]
    return {
        "compute": compute,
        "workers": workers,
        "lr": lr,
        "seed": seed,
        "rule": rule,
        "data_set": data_set,
        "model": model,
        "epochs": epochs,
        "dc_lambda": dc_lambda,
        "state": result.state,
        "accuracy": found[-1] if result.state == "FINISHED" else CHANCE,
        "validations": found,
        "gradients": [node["samples"]["load.lag"]["count"] for node in result.record["nodes"][:workers]],
        "staleness": staleness(result.record),
        "cpu_s": round(time.process_time() - began, 1),
        "reason": result.reason,
    }


def staleness(record: dict[str, Any]) -> dict[str, float]:
    """Means over the samples of all workers, by name."""
    found = {}
    for name in ("lag", "gap", "normalised_gap"):
        told = [node["samples"][f"load.{name}"] for node in record["nodes"] if f"load.{name}" in node["samples"]]
        if told:
            found[name] = sum(each["mean"] * each["count"] for each in told) / sum(each["count"] for each in told)
    return found


def runs(path: Path) -> list[dict[str, Any]]:
    """The runs that a file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tables(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """For each of the other settings, tables with a row for each number of workers: accuracy, gap and lag."""
    groups: dict[tuple[str, str, float, str, float, float], list[dict[str, Any]]] = defaultdict(list)
    for run in found:
        groups[run["data_set"], run["model"], run["epochs"], run["compute"], run["lr"], run["dc_lambda"]].append(run)
    for (data_set, model, epochs, compute, lr, dc_lambda), group in sorted(groups.items()):
        rules = [rule for rule in RULES if any(run["rule"] == rule for run in group)]
        what = f"\n{data_set}, model {model}, {epochs:g} epochs, compute {compute}, lr {lr:g}, lambda {dc_lambda:g}"
        yield f"{what}: accuracy, %"
        yield from rows(group, rules, lambda run: run["accuracy"], "{:.2f}")
        yield f"{what}: gap"
        yield from rows(group, rules, lambda run: run["staleness"].get("gap"), "{:.2g}")
        yield f"{what}: lag"
        yield from rows(group, rules, lambda run: run["staleness"].get("lag"), "{:.1f}")
        yield f"{what}: gradients of the fastest worker over those of the slowest"
        yield from rows(group, rules, lambda run: max(run["gradients"]) / max(1, min(run["gradients"])), "{:.2f}")


def rows(group: Sequence[dict[str, Any]], rules: Sequence[str], value: Any, shown: str) -> Iterator[str]:
    """A table of Markdown: mean, deviation over the seeds, and how many seeds if not three."""
    yield f"| workers | {' | '.join(rules)} |"
    yield f"| --- |{' --- |' * len(rules)}"
    for workers in sorted({run["workers"] for run in group}):
        cells = []
        for rule in rules:
            values = [value(run) for run in group if (run["workers"], run["rule"]) == (workers, rule)]
            values = [each for each in values if each is not None]
            text = shown.format(fmean(values)) if values else ""
            if len(values) > 1:
                text += f" ± {shown.format(stdev(values))}"
            cells.append(text + (f" ({len(values)})" if len(values) in (1, 2) else ""))
        yield f"| {workers} | {' | '.join(cells)} |"


def main() -> None:
    """Make the runs that are asked for and not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the data set's files")
    parser.add_argument("--out", type=Path, default=Path("dana.jsonl"))
    parser.add_argument("--data-set", default="mnist", choices=["mnist", "cifar10"])
    parser.add_argument("--model", default="auto", help="network; see the setting of the job")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--dc-lambda", type=float, default=2.0, help="of rules with delay compensation")
    parser.add_argument("--compute", nargs="*", default=["gamma"], choices=["gamma", "gamma-heterogeneous"])
    parser.add_argument("--workers", nargs="*", type=int, default=[1, 8, 16, 32])
    parser.add_argument("--lr", nargs="*", type=float, default=[0.006])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--rules", nargs="*", default=[*RULES], choices=[*RULES])
    asked = parser.parse_args()
    done = {tuple(run[key] for key in KEYS) for run in runs(asked.out)}
    same = [asked.data_set], [asked.model], [asked.epochs], [asked.dc_lambda]
    for run in product(asked.compute, asked.workers, asked.lr, asked.seeds, asked.rules, *same):
        if run not in done:
            line = json.dumps(one(*run, asked.data))
            with asked.out.open("a") as file:
                file.write(line + "\n")
            print(line, flush=True)
    for line in tables(runs(asked.out)):
        print(line)


if __name__ == "__main__":
    main()
