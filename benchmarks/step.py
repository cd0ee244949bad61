"""A training step of the MNIST and the ImageNet network: the compiled kernels against PyTorch on the CPU.

    python benchmarks/step.py [--networks mnist imagenet] [--threads 1 2] [--quick] [--json FILE]

A step is the forward and the backward pass of softmax cross-entropy on one mini-batch, without the weight update on
either side. Rounds of all systems alternate (A B C A B C ...); figures are medians over the rounds, ratios are taken
within a round and shown with their quartiles.

ako: `operators.dnn.Model.gradient` on as many Python threads as said, each with a workspace and a shard of the
mini-batch; the shards' gradients are added.

PyTorch: eager mode with as many intra-op threads, gradients set to None before each step, tensors contiguous and
channels_last; the better of the two is compared with. `torch.compile` is not used. Its OpenMP threads are its own.

GFLOP/s count multiply-adds of convolutions and dense layers as 2, in the forward pass, for the weights' gradient and,
but for the first of these layers, for the input's gradient. The peak is the best product of float32 matrices of
1,024 x 1,024 that NumPy computed on one thread in this run, times the threads.

Section `scaling`: two threads, each with mini-batches of 64 of its own, against one: what a second compute task of a
node can give at most.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's BLAS, which measures the peak, reads it when it is loaded

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from ako_jobs.models import PAPER, RELU
from dataflow import installed_versions
from operators.dnn import Conv, Dense, MaxPool, Model, ModelSpec
from operators.dnn.layers import Activation

try:
    import torch
except ImportError:
    torch = None

MNIST = ModelSpec(input=(1, 28, 28), layers=PAPER)
IMAGENET = ModelSpec(
    input=(3, 100, 100),
    layers=(
        Conv(filters=32, kernel=5),  # to 32 x 96 x 96, pooled to 48 x 48
        RELU,
        MaxPool(size=2),
        Conv(filters=64, kernel=5),  # to 64 x 44 x 44, pooled to 22 x 22
        RELU,
        MaxPool(size=2),
        Conv(filters=256, kernel=3),  # to 256 x 20 x 20, pooled to 10 x 10
        RELU,
        MaxPool(size=2),
        Dense(units=800),
        RELU,
        Dense(units=100),
    ),
)
"""The network for 100 classes of ImageNet of ako.txt 5.1, without padding: 20.8 million weights."""

N_WEIGHTS = {"mnist": 59_590, "imagenet": 20_762_308}
NETWORKS = {"mnist": MNIST, "imagenet": IMAGENET}
BATCHES = {"mnist": (16, 32, 64, 128, 256), "imagenet": (16, 32, 64)}
SCALING_BATCH = 64

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Trainer:
    """One system on one mini-batch: `step` makes a step and gives the mean loss, `gradient` what the last one found."""

    step: Callable[[], float]
    gradient: Callable[[], Vector]


@dataclass
class Row:
    """One network, batch and number of threads: images per second of each system by round."""

    network: str
    threads: int
    batch: int
    gflop_per_image: float
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def median(self, system: str) -> float:
        """Images per second of a system."""
        return median(self.rounds[system])

    def peer(self) -> str | None:
        """The better of PyTorch's layouts."""
        return max((system for system in self.rounds if system != "ako"), key=self.median, default=None)


def gflop_per_image(spec: ModelSpec) -> float:
    """Multiply-adds of a training step per image, each counted as 2, in 1e9."""
    forward = []
    for layer, (before, after) in zip(spec.layers, pairwise(spec.shapes()), strict=True):
        if isinstance(layer, Conv):
            forward.append(2 * np.prod(after) * before[0] * layer.kernel**2)
        elif isinstance(layer, Dense):
            forward.append(2 * np.prod(before) * layer.units)
    return float(3 * sum(forward) - forward[0]) / 1e9


def sgemm_peak(seconds: float) -> float:
    """GFLOP/s of the best of many square products on one thread."""
    side = 1024
    left, right = (np.random.default_rng(seed).random((side, side), np.float32) for seed in (0, 1))
    out, best = np.empty_like(left), float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        np.matmul(left, right, out=out)
        best = min(best, time.perf_counter() - begin)
    return 2 * side**3 / best / 1e9


class Ours:
    """The network's compiled kernels on some threads."""

    def __init__(self, spec: ModelSpec, weights: npt.NDArray[np.float32]) -> None:
        self.model, self.weights = Model(spec), weights
        self.model.compile()

    def trainer(self, images: Vector, labels: npt.NDArray[np.int64], threads: int, pool: ThreadPoolExecutor) -> Trainer:
        """Steps on as many shards as threads of the pool."""
        cuts = [len(images) * shard // threads for shard in range(threads + 1)]
        outs = [np.empty_like(self.weights) for _ in range(threads)]
        workspaces = [self.model.workspace(end - begin) for begin, end in pairwise(cuts)]

        def shard(index: int) -> float:
            part = slice(cuts[index], cuts[index + 1])
            loss, _ = self.model.gradient(
                self.weights,
                images[part],
                labels[part],
                outs[index],
                workspaces[index],
                1 / len(images),
                statistics=np.zeros(self.model.n_statistics, np.float32),
                seed=0,
            )
            return loss

        def step() -> float:
            loss = sum(pool.map(shard, range(threads))) if threads > 1 else shard(0)
            for out in outs[1:]:
                np.add(outs[0], out, out=outs[0])
            return loss / len(images)

        return Trainer(step, lambda: outs[0])


def torch_network(spec: ModelSpec, weights: npt.NDArray[np.float32]) -> Any:
    """The network in PyTorch with the same weights."""
    layers: list[Any] = []
    for layer, before in zip(spec.layers, spec.shapes(), strict=False):
        if isinstance(layer, Conv):
            layers.append(torch.nn.Conv2d(before[0], layer.filters, layer.kernel))
        elif isinstance(layer, MaxPool):
            layers.append(torch.nn.MaxPool2d(layer.size))
        elif isinstance(layer, Activation):
            layers.append({"relu": torch.nn.ReLU, "sigmoid": torch.nn.Sigmoid, "tanh": torch.nn.Tanh}[layer.function]())
        else:
            if before[1:] != (1, 1) or not any(isinstance(each, torch.nn.Flatten) for each in layers):
                layers.append(torch.nn.Flatten())
            layers.append(torch.nn.Linear(int(np.prod(before)), layer.units))
    network = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, view in zip(network.parameters(), Model(spec).views(weights).values(), strict=True):
            parameter.copy_(torch.from_numpy(view))
    return network


def torch_trainer(network: Any, images: Vector, labels: npt.NDArray[np.int64], layout: str) -> Trainer:
    """Steps of a PyTorch network in a memory layout."""
    memory_format = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}[layout]
    network = network.to(memory_format=memory_format)
    inputs = torch.from_numpy(images).contiguous(memory_format=memory_format)
    classes = torch.from_numpy(labels)

    def step() -> float:
        network.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(network(inputs), classes)
        loss.backward()
        return float(loss.detach())

    def gradient() -> Vector:
        return np.concatenate([each.grad.contiguous().numpy().ravel() for each in network.parameters()])

    return Trainer(step, gradient)


def images_per_s(trainer: Trainer, batch: int, seconds: float) -> float:
    """Images per second over at least `seconds` and one step."""
    steps, begin = 0, time.perf_counter()
    while True:
        trainer.step()
        steps += 1
        spent = time.perf_counter() - begin
        if spent >= seconds:
            return steps * batch / spent


def agree(trainers: dict[str, Trainer], network: str) -> None:
    """Make a step with each and check that all found the same loss and gradient."""
    losses = {system: trainer.step() for system, trainer in trainers.items()}
    ours = trainers["ako"].gradient()
    for system, trainer in trainers.items():
        error = np.abs(trainer.gradient() - ours).max() / np.abs(ours).max()
        if abs(losses[system] - losses["ako"]) > 1e-3 or error > 1e-3:
            message = f"{network}: {system} differs from ako: losses {losses}, gradients by {error:.1e} of the largest"
            raise SystemExit(message)


def data(spec: ModelSpec, batch: int, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    classes = spec.shapes()[-1][0]
    return rng.standard_normal((batch, *spec.input), np.float32), rng.integers(0, classes, batch)


def measure(name: str, threads: int, batch: int, options: argparse.Namespace) -> Row:
    """All rounds of one row."""
    spec = NETWORKS[name]
    row = Row(name, threads, batch, gflop_per_image(spec))
    ours = Ours(spec, Model(spec).initial(np.random.default_rng(0)))
    images, labels = data(spec, batch, 1)
    with ThreadPoolExecutor(threads) as pool:
        trainers = {"ako": ours.trainer(images, labels, threads, pool)}
        if torch is not None:
            torch.set_num_threads(threads)
            for layout in ("contiguous", "channels_last"):
                trainers[layout] = torch_trainer(torch_network(spec, ours.weights), images, labels, layout)
        agree(trainers, name)
        for _ in range(options.rounds):
            for system, trainer in trainers.items():
                row.rounds.setdefault(system, []).append(images_per_s(trainer, batch, options.seconds))
    gc.collect()
    return row


def scaling(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Images per second of one and of two threads that each compute steps of their own."""
    spec, seconds = NETWORKS[name], options.seconds
    ours = Ours(spec, Model(spec).initial(np.random.default_rng(0)))
    rates: dict[int, list[float]] = {1: [], 2: []}
    with ThreadPoolExecutor(2) as pool:
        trainers = [ours.trainer(*data(spec, SCALING_BATCH, seed), 1, pool) for seed in (1, 2)]
        for trainer in trainers:
            trainer.step()
        for _ in range(options.rounds):
            for tasks, found in rates.items():
                found.append(sum(pool.map(lambda each: images_per_s(each, SCALING_BATCH, seconds), trainers[:tasks])))
    ratios = [both / single for single, both in zip(rates[1], rates[2], strict=True)]
    return {"network": name, "batch": SCALING_BATCH, "images_per_s": rates, "ratio": quartiles(ratios)}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile."""
    first, middle, third = np.percentile(values, (25, 50, 75)).tolist()
    return first, middle, third


def spread(values: tuple[float, float, float]) -> str:
    return f"{values[1]:.2f} [{values[0]:.2f}, {values[2]:.2f}]"


def print_row(row: Row, peak: float) -> dict[str, Any]:
    """Print a row; what goes into the JSON file of it."""
    speed = row.median("ako")
    gflops = speed * row.gflop_per_image
    share = gflops / peak / row.threads
    text = f"{row.network:8} {row.threads:7} {row.batch:5}  {speed:9,.0f} {gflops:7.1f} {share:6.0%}"
    result = asdict(row) | {"of_peak": share}
    peer = row.peer()
    if peer is not None:
        theirs = row.median(peer)
        ratio = quartiles([a / b for a, b in zip(row.rounds["ako"], row.rounds[peer], strict=True)])
        result |= {"peer": peer, "ratio": ratio, "peer_of_peak": theirs * row.gflop_per_image / peak / row.threads}
        text += f"  {theirs:9,.0f} {theirs * row.gflop_per_image:7.1f} {peer:13} {spread(ratio)}"
    print(text, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batches", nargs="+", type=int, help="instead of each network's own")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.7, help="of each round of each system, at least")
    parser.add_argument("--quick", action="store_true", help="two short rounds of one small batch")
    parser.add_argument("--json", type=Path, help="write everything measured there")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.batches = 2, 0.05, options.batches or [16]
    for name, spec in NETWORKS.items():
        assert Model(spec).n_weights == N_WEIGHTS[name]
    peak = sgemm_peak(0.1 if options.quick else 3.0)
    versions = installed_versions() | ({"torch": torch.__version__} if torch else {})
    print(", ".join(f"{package} {version}" for package, version in versions.items()))
    print(f"sgemm peak of one thread: {peak:.1f} GFLOP/s; {options.rounds} rounds of {options.seconds:g} s")
    if torch is None:
        print("PyTorch is not installed: its columns are left out (pip install -e '.[torch]')")
    print("network  threads batch   images/s GFLOP/s   peak", end="")
    print("    PyTorch GFLOP/s layout        ratio [quartiles]" if torch else "")
    rows = [
        print_row(measure(name, threads, batch, options), peak)
        for name in options.networks
        for threads in options.threads
        for batch in options.batches or BATCHES[name]
    ]
    print(f"\nscaling: 2 threads with mini-batches of {SCALING_BATCH} of their own against 1, images/s")
    scales = [scaling(name, options) for name in options.networks]
    for scale in scales:
        print(f"{scale['network']:8} {spread(scale['ratio'])}")
    if options.json:
        result = {"versions": versions, "sgemm_peak_gflops": peak, "rows": rows, "scaling": scales}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
