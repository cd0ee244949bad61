"""Whether momentum pays where there is no master: accuracy of Ako with and without `look_ahead`, simulated.

    python benchmarks/reproductions/momentum.py --data /path/to/mnist --out momentum.jsonl

makes the runs of docs/momentum.md that the file does not have yet, each a line of JSON in it, and prints all in it as
a table; it may be stopped and called again. `--sweep` makes short ones, with other rates and look-ahead. Accuracy
is on the test images, at the end, and beside it that on the images held out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from ako_jobs.simulate import simulate
from dataflow import ClusterModel

SETTINGS: dict[str, Any] = {"data": "mnist", "average": 0, "p": 5, "every": 1, "warm_start": 0.1, "holdout": 0.1}
CHANCE = 10.0
"""Accuracy in percent that a run counts with whose loss was no number any more."""


class Run(NamedTuple):
    """What tells runs apart."""

    nodes: int
    momentum: float
    look_ahead: int
    lr: float
    batch: int
    epochs: float
    seed: int


STUDIED = ((1, 0.9, 1, 0.01), (8, 0.0, 0, 0.02), (8, 0.9, 3, 0.0025), (16, 0.0, 0, 0.01), (16, 0.9, 3, 0.00125))
"""Nodes, momentum, steps of look-ahead and rate of the runs with all seeds, for 8 epochs."""
TRIED = (
    (8, 0.0, 0, 0.02),
    *((8, 0.9, steps, 0.0025) for steps in (0, 1, 3)),
    *((8, 0.9, steps, 0.01) for steps in (0, 3)),
)
"""The same of those with one seed, for 2 epochs."""


def one(run: Run, data: str) -> dict[str, Any]:
    """A run: its accuracies in percent."""
    told = {key: value for key, value in run._asdict().items() if key != "nodes"}
    model = ClusterModel.model_validate({"compute": "gamma", "step_s": 0.01, "rate": 1e12, "latency_s": 0.0})
    began = time.process_time()
    result = simulate("ako", {**SETTINGS, **told, "data_dir": data}, nodes=run.nodes, model=model)
    found = [report for report in result.reports if report["port"] == "validate.results"]
    ended = result.state == "FINISHED" and found
    return {
        **run._asdict(),
        "state": result.state,
        "accuracy": 100 * found[-1]["accuracy"] if ended else CHANCE,
        "held_out": 100 * found[-1]["validation_accuracy"] if ended else CHANCE,
        "validations": [100 * report["accuracy"] for report in found],
        "cpu_s": round(time.process_time() - began, 1),
        "reason": result.reason,
    }


def runs(path: Path) -> list[dict[str, Any]]:
    """The runs that a file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A row of Markdown for each setting: mean and deviation over the seeds, and how many there are."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for run in found:
        groups[tuple(run[key] for key in Run._fields[:-1])].append(run)
    yield "| nodes | momentum | look_ahead | lr | batch | epochs | accuracy, % | held out, % | seeds |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for key, group in sorted(groups.items()):
        cells = [f"{value:g}" for value in key]
        cells += [shown([run[name] for run in group]) for name in ("accuracy", "held_out")]
        yield f"| {' | '.join(cells)} | {len(group)} |"


def shown(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def main() -> None:
    """Make the runs that are asked for and not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the MNIST files")
    parser.add_argument("--out", type=Path, default=Path("momentum.jsonl"))
    parser.add_argument("--sweep", action="store_true", help="make the shorter runs with one seed")
    parser.add_argument("--nodes", nargs="*", type=int, default=[1, 8, 16], help="of these numbers of nodes only")
    parser.add_argument("--seeds", nargs="*", type=int, help="0 to 4 unless given; 0 with --sweep")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=float, help="8 unless given; 2 with --sweep")
    asked = parser.parse_args()
    seeds = asked.seeds or ([0] if asked.sweep else range(5))
    epochs = asked.epochs or (2 if asked.sweep else 8)
    done = {tuple(run[key] for key in Run._fields) for run in runs(asked.out)}
    for seed in seeds:
        for nodes, momentum, look_ahead, lr in TRIED if asked.sweep else STUDIED:
            run = Run(nodes, momentum, look_ahead, lr, asked.batch, epochs, seed)
            if nodes in asked.nodes and run not in done:
                line = json.dumps(one(run, asked.data))
                with asked.out.open("a") as file:
                    file.write(line + "\n")
                print(line, flush=True)
    for line in table(runs(asked.out)):
        print(line)


if __name__ == "__main__":
    main()
