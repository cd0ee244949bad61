"""Time to 98.5% test accuracy on MNIST: one node with two compute tasks against PyTorch with one and with two threads.

    python benchmarks/mnist_one_node.py --data-dir DIR --tune --json tuned.json
    python benchmarks/mnist_one_node.py --data-dir DIR --settings tuned.json --json result.json
    python benchmarks/mnist_one_node.py --data-dir DIR --quick

The time is that of the second of two successive validations that hold 98.5%, from the first mini-batch on, validations
included; beside it stands the time from the start of the processes on, with imports, data, compilation and, for ako,
the master and the node. Runs alternate, one seed after another; a run that never gets there is counted as such.

Alike for all: the MNIST network of ako.txt, uniform initial weights (PyTorch's own), the same normalisation, all 60,000
images for training, none held out, no warm start, plain mini-batches in a new order every epoch, a validation on the
10,000 test images every 6,000 images, and learning rate, batch, momentum and decay tuned for each system by `--tune`,
on a seed of its own.

ako: `ako run ako --nodes 1`, a master and a node process and the job's process, as a user has it. `LocalCluster` starts
the node with two compute tasks, since `ako run` by itself takes one per core.

PyTorch: a loop over tensors in memory, without a DataLoader, in a process of its own; SGD; eager; contiguous or
channels_last, whichever is faster in a short trial before the time begins; evaluation 250 images at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from ako_jobs import datasets
from dataflow import LocalCluster
from dataflow.runtime.auth import TOKEN_VARIABLE, read_token
from dataflow.runtime.state_dir import read_endpoint

try:
    import torch
except ImportError:
    torch = None
else:
    from mnist_torch_job import layers

SYSTEMS = {"ako, 2 tasks": 2, "torch, 1 thread": 1, "torch, 2 threads": 2}
TARGET, HOLD = 0.985, 2
TUNING_SEED = 100
EVALUATED_AT_ONCE = 250


@dataclass(frozen=True)
class Settings:
    """What is tuned: learning rate, batch, momentum, and how the rate goes on over so many epochs."""

    lr: float = 0.1
    batch: int = 32
    momentum: float = 0.0
    decay: str = "constant"
    epochs: float = 5.0


@dataclass
class Run:
    """One run: times of validations in seconds from the first mini-batch on, with images and test accuracies.

    `start_s` went by from the start of the processes to the first mini-batch. `failed` says why a run broke off.
    """

    system: str
    seed: int
    settings: Settings
    start_s: float = 0.0
    validations: list[tuple[float, int, float]] = field(default_factory=list)
    failed: str = ""

    def reached(self) -> tuple[float, int] | None:
        """Seconds and images until the target had been held; None if it never was."""
        return reached(self.validations)

    def to_json(self) -> dict[str, Any]:
        """The run with what it reached."""
        return asdict(self) | {"reached": self.reached()}


def reached(validations: Sequence[tuple[float, int, float]], target: float = TARGET) -> tuple[float, int] | None:
    """Seconds and images until the target had been held, of validations in order; None if it never was."""
    held = 0
    for seconds, images, accuracy in validations:
        held = held + 1 if accuracy >= target else 0
        if held == HOLD:
            return seconds, images
    return None


def run_ako(seed: int, settings: Settings, options: argparse.Namespace) -> Run:
    """A run of `ako run`, read off its record."""
    run = Run("ako, 2 tasks", seed, settings)
    with tempfile.TemporaryDirectory() as folder:
        out, begin = Path(folder, "out.json"), time.perf_counter()
        with LocalCluster(1, tasks=SYSTEMS[run.system]) as cluster:
            address, token = read_endpoint(cluster.state_dir), read_token(cluster.state_dir)
            words = {
                "data": "mnist",
                "data_dir": str(options.data_dir),
                "init": "uniform",
                "lr": settings.lr,
                "batch": settings.batch,
                "momentum": settings.momentum,
                "average": 0,  # as PyTorch has it here
                "schedule": settings.decay,
                "epochs": settings.epochs,
                "holdout": 0,
                "warm_start": 0,
                "validate_every": options.validate_every,
                "target": TARGET,
                "hold": HOLD,
                "time": options.limit,
                "seed": seed,
            }
            ended = subprocess.run(
                [
                    *(sys.executable, "-m", "dataflow.cli.main", "run", "ako", "--nodes", "1"),
                    *("--master", address, "--json", str(out)),
                    *(f"{key}={value}" for key, value in words.items()),
                ],
                env=os.environ | {TOKEN_VARIABLE: token},
                capture_output=True,
                text=True,
                check=False,
            )
            spent = time.perf_counter() - begin
        if not out.exists():
            message = f"ako run ended with status {ended.returncode} and without a record: {ended.stderr[-2000:]}"
            raise SystemExit(message)
        record = json.loads(out.read_text())
    run.start_s = spent - record["run_s"]
    run.failed = record["reason"]
    for report in record["reports"]:
        if report["port"] != "validate.results":
            continue
        images = report["images"]
        if not run.validations or run.validations[-1][1] != images:  # the last step is validated once more at the end
            run.validations.append((report["time_s"], images, report["accuracy"]))
    return run


def run_torch(system: str, seed: int, settings: Settings, options: argparse.Namespace) -> Run:
    """A run of this script's PyTorch loop in a process of its own."""
    run = Run(system, seed, settings)
    job = {"threads": SYSTEMS[system], "seed": seed, "settings": asdict(settings), "limit": options.limit}
    job |= {"data_dir": str(options.data_dir), "validate_every": options.validate_every}
    begin = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, __file__, "--torch-job", json.dumps(job)], capture_output=True, text=True, check=False
    )
    spent = time.perf_counter() - begin
    if ended.returncode:
        message = f"the PyTorch loop ended with status {ended.returncode}: {ended.stderr[-2000:]}"
        raise SystemExit(message)
    found = json.loads(ended.stdout)
    run.start_s, run.failed = spent - found["run_s"], found["failed"]
    run.validations = [(seconds, images, accuracy) for seconds, images, accuracy in found["validations"]]
    return run


def torch_loop(job: dict[str, Any]) -> dict[str, Any]:
    """Train with PyTorch until the target is held, the epochs are over or the time is."""
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    settings, every = Settings(**job["settings"]), job["validate_every"]
    data = datasets.load("mnist", job["data_dir"])
    train, test = ((torch.from_numpy(part.copy()), labels) for part, labels in parts(data))
    network = layers()
    layout = faster_layout(train[0][: settings.batch], train[1][: settings.batch])
    network = network.to(memory_format=layout)
    images, tests = (part[0].contiguous(memory_format=layout) for part in (train, test))
    labels, answers = train[1], test[1]
    optimizer = torch.optim.SGD(network.parameters(), lr=settings.lr, momentum=settings.momentum)
    per_epoch = -(-len(images) // settings.batch)
    total = round(settings.epochs * per_epoch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total) if settings.decay == "cosine" else None
    run = Run("torch", job["seed"], settings)
    seen, begin = 0, time.perf_counter()
    for step in range(total):
        position = step % per_epoch
        if position == 0:
            order = torch.randperm(len(images))
        rows = order[position * settings.batch : (position + 1) * settings.batch]
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(network(images[rows]), labels[rows])
        if not np.isfinite(loss.item()):
            run.failed = f"the loss is {loss.item()} at step {step + 1}"
            break
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        before, seen = seen, seen + len(rows)
        if seen // every > before // every or step == total - 1:
            accuracy = torch_accuracy(network, tests, answers)
            run.validations.append((time.perf_counter() - begin, seen, accuracy))
            if run.reached() or run.validations[-1][0] > job["limit"]:
                break
    return {"run_s": time.perf_counter() - begin, "validations": run.validations, "failed": run.failed}


def parts(data: datasets.DataSet) -> Iterator[tuple[Any, Any]]:
    """Normalised training and test images, each with its labels."""
    mean, std = np.float32(data.mean[0]), np.float32(data.std[0])
    for images, labels in ((data.train_images, data.train_labels), (data.test_images, data.test_labels)):
        pixels = images.astype(np.float32) * np.float32(1 / data.scale)
        yield (pixels - mean) / std, torch.from_numpy(labels.copy())


def faster_layout(images: Any, labels: Any) -> Any:
    """The memory layout in which a step on this batch takes less time, on networks that are thrown away."""
    best = {}
    state = torch.get_rng_state()
    for layout in (torch.contiguous_format, torch.channels_last):
        network, times = layers().to(memory_format=layout), []
        inputs = images.contiguous(memory_format=layout)
        for _ in range(30):
            begin = time.perf_counter()
            network.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(network(inputs), labels).backward()
            times.append(time.perf_counter() - begin)
        best[layout] = median(times)
    torch.set_rng_state(state)
    return min(best, key=lambda layout: best[layout])


def torch_accuracy(network: Any, images: Any, labels: Any) -> float:
    """Share of images classified correctly."""
    with torch.inference_mode():
        parts = zip(images.split(EVALUATED_AT_ONCE), labels.split(EVALUATED_AT_ONCE), strict=True)
        return sum(int((network(part).argmax(1) == answers).sum()) for part, answers in parts) / len(labels)


def execute(system: str, seed: int, settings: Settings, options: argparse.Namespace) -> Run:
    """Run and print a line."""
    run = run_ako(seed, settings, options) if system.startswith("ako") else run_torch(system, seed, settings, options)
    held, best = run.reached(), max((accuracy for *_, accuracy in run.validations), default=0.0)
    said = f"{held[0]:7.1f} s {held[1]:8,} images" if held else f"never ({run.failed or 'not in time'})"
    text = f"lr {settings.lr:<5g} batch {settings.batch:<4} momentum {settings.momentum:<4g}"
    text += f" {settings.decay:8} {settings.epochs:g} epochs"
    print(f"{system:17} seed {seed:<3} {text}  {said}; best {best:.2%}", flush=True)
    return run


def tune(systems: Sequence[str], options: argparse.Namespace) -> tuple[dict[str, Settings], list[Run]]:
    """The settings of each system with which it was fastest, and all runs that were made."""
    grid = [
        Settings(lr, batch, momentum, decay, epochs)
        for decay, epochs in [("constant", options.epochs), *(("cosine", epochs) for epochs in options.cosine_epochs)]
        for lr, batch, momentum in itertools.product(options.lr, options.batch, options.momentum)
    ]
    runs = [execute(system, TUNING_SEED, settings, options) for settings in grid for system in systems]
    best = {}
    for system in systems:
        times = {run.settings: found[0] for run in runs if run.system == system and (found := run.reached())}
        if not times:
            message = f"{system} never reached {TARGET:.1%} with any of the settings tried"
            raise SystemExit(message)
        best[system] = min(times, key=lambda settings: times[settings])
    return best, runs


def spread(values: Sequence[float]) -> str:
    """Median and quartiles."""
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else "-"
    first, middle, third = quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} [{first:.2f}, {third:.2f}]"


def summary(systems: Sequence[str], runs: Sequence[Run]) -> None:
    """Print a row per system, and how many times longer each took than ako with the same seed."""
    print(f"\n{'system':17} reached   seconds [quartiles]     with start-up           images          / ako")
    times = {(run.system, run.seed): found[0] for run in runs if (found := run.reached())}
    for system in systems:
        mine = [run for run in runs if run.system == system]
        found = [(run, held) for run in mine if (held := run.reached())]
        ratios = [
            times[system, run.seed] / times[systems[0], run.seed] for run, _ in found if (systems[0], run.seed) in times
        ]
        print(
            f"{system:17} {len(found):2} of {len(mine):<2}  {spread([seconds for _, (seconds, _) in found]):22}"
            f"  {spread([run.start_s + seconds for run, (seconds, _) in found]):22}"
            f"  {median([images for _, (_, images) in found]) if found else 0:9,.0f}  {spread(ratios)}"
        )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of the MNIST files")
    parser.add_argument("--tune", action="store_true", help="find each system's settings, then go on with them")
    parser.add_argument("--settings", type=Path, help="JSON file of an earlier --tune, whose settings are used")
    parser.add_argument("--lr", type=float, nargs="+", default=[0.01, 0.03, 0.1, 0.3], help="to tune over")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 64, 128], help="to tune over")
    parser.add_argument("--momentum", type=float, nargs="+", default=[0.0, 0.9], help="to tune over")
    parser.add_argument("--cosine-epochs", type=float, nargs="*", default=[2.0], help="lengths of decays to tune over")
    parser.add_argument("--epochs", type=float, default=5.0, help="at most, with a constant learning rate")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a run")
    parser.add_argument("--validate-every", type=int, default=6000, help="images between two validations")
    parser.add_argument("--quick", action="store_true", help="one seed, no tuning")
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--torch-job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.data_dir is None and options.torch_job is None:
        parser.error("--data-dir must be given")
    return options


def main() -> None:
    options = parse()
    if options.torch_job:
        print(json.dumps(torch_loop(options.torch_job)))
        return
    systems = [system for system in SYSTEMS if torch is not None or not system.startswith("torch")]
    if torch is None:
        print("PyTorch is not installed: its runs are left out (pip install -e '.[torch]')")
    chosen, tried = dict.fromkeys(systems, Settings(epochs=options.epochs)), []
    if options.settings:
        known = json.loads(options.settings.read_text())["chosen"]
        chosen |= {system: Settings(**known[system]) for system in systems if system in known}
    if options.tune:
        chosen, tried = tune(systems, options)
    seeds = range(1 if options.quick else options.seeds)
    runs = [execute(system, seed, chosen[system], options) for seed in seeds for system in systems]
    summary(systems, runs)
    if options.json:
        result = {
            "target": TARGET,
            "hold": HOLD,
            "chosen": {system: asdict(settings) for system, settings in chosen.items()},
            "tried": [run.to_json() for run in tried],
            "runs": [run.to_json() for run in runs],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
