"""Codecs for gradients: speed against a copy of the same vector, and size against the entropy of what is sent.

    python benchmarks/codec_speed.py [--quick] [--json FILE]

One thread, processor time, minima over rounds; in every round a copy of the vector (`np.copyto`) is timed next to each
pass, and the ratio is the median over rounds of copy / pass: 1 is as fast as a copy. Gradients are normally
distributed.

`encode` is `Residual.quantise` and `Update.encode` of all weights, `decode` is `add` of that code, which checks it
first. GB/s count the dense gradient, 4 bytes for each weight.

Section `rice`: `Update.encode`, `add`, and of that the decoding alone, which is the check before anything is added, in
MB/s of 4-byte updates; and bits for each update without its sign against the entropy H(q)/q of gaps at the code's own
density q. The vector is larger than the caches near a core, so what `add` takes beside decoding is waiting for memory.

Section `step`: what one gradient of a small model costs, in microseconds: `Residual.add`, `quantise`, `encode`, `add`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from dataflow import installed_versions
from operators.compression import Codec, Half, Int8, OneBit, Residual, Threshold, TopK, add
from operators.compression.decode import walk
from operators.dnn.arrays import read_only

SIZES = (60_000, 1_000_000, 14_600_000)
DENSITIES = (0.001, 0.003, 0.01, 0.03)
RICE_DENSITIES = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.22, 0.3)
LAYERS = 8

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Speed:
    """A codec on a vector: GB/s of dense gradient, ratios to a copy, bytes of the code."""

    codec: str
    n_weights: int
    density: float
    copy_gb_s: float
    encode_gb_s: float
    encode_ratio: float
    decode_gb_s: float
    decode_ratio: float
    code_nbytes: int


@dataclass(frozen=True)
class Rice:
    """Golomb-Rice coding of positions: MB/s of 4-byte updates, and bits of position for each update."""

    density: float
    encode_mb_s: float
    decode_mb_s: float
    add_mb_s: float
    bits: float
    entropy: float


@dataclass(frozen=True)
class Step:
    """One gradient of a model: microseconds of each part."""

    codec: str
    n_weights: int
    density: float
    add_us: float
    quantise_us: float
    encode_us: float
    decode_us: float


def seconds(function: Callable[[], object]) -> float:
    """Processor time of a call."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def normal(n_weights: int, seed: int = 0) -> Vector:
    """A gradient."""
    return np.random.default_rng(seed).standard_normal(n_weights, np.float32)


def tau_for(values: Vector, density: float) -> float:
    """What a share `density` of the values exceeds."""
    rank = int(values.size * (1 - density))
    return float(np.partition(np.abs(values), rank)[rank])


def speed(codec: Codec, values: Vector, rounds: int) -> Speed:
    """Encode and decode, each next to a copy."""
    residual, copied, target = Residual(codec, values.size), np.empty_like(values), np.zeros_like(values)
    residual.values[:] = values
    code = residual.quantise().encode(0, values.size)
    add(target, code)
    density = float(np.count_nonzero(target)) / values.size
    copies, encodes, decodes = [], [], []
    for _ in range(rounds):
        residual.values[:] = values
        copies.append(seconds(lambda: np.copyto(copied, values)))
        encodes.append(seconds(lambda: residual.quantise().encode(0, values.size)))
        decodes.append(seconds(lambda: add(target, code)))
    gb = 4e-9 * values.size
    return Speed(
        codec=codec.kind,
        n_weights=values.size,
        density=density,
        copy_gb_s=gb / min(copies),
        encode_gb_s=gb / min(encodes),
        encode_ratio=median(a / b for a, b in zip(copies, encodes, strict=True)),
        decode_gb_s=gb / min(decodes),
        decode_ratio=median(a / b for a, b in zip(copies, decodes, strict=True)),
        code_nbytes=code.size,
    )


def rice(values: Vector, density: float, rounds: int) -> Rice:
    """Coding and decoding of one update's positions and signs."""
    residual = Residual(Threshold(tau=tau_for(values, density), packing="rice"), values.size)
    residual.add(values)
    update, target = residual.quantise(), np.zeros_like(values)
    code = update.encode(0, values.size)
    add(target, code)
    count = int(np.count_nonzero(target))
    encodes = [seconds(lambda: update.encode(0, values.size)) for _ in range(rounds)]
    adds = [seconds(lambda: add(target, code)) for _ in range(rounds)]
    checked = read_only(code)
    decodes = [seconds(lambda: walk(checked, target, np.float32(1), False)) for _ in range(rounds)]
    own = count / values.size
    entropy = -(own * math.log2(own) + (1 - own) * math.log2(1 - own)) / own
    mb = 4e-6 * count
    return Rice(own, mb / min(encodes), mb / min(decodes), mb / min(adds), 8 * code.size / count - 1, entropy)


def step(codec: Codec, n_weights: int, rounds: int) -> Step:
    """The parts of one step, each at its fastest after the residual has settled."""
    layers = [n_weights * layer // LAYERS for layer in range(LAYERS)]
    residual, target = Residual(codec, n_weights, layers), np.zeros(n_weights, np.float32)
    gradients = [normal(n_weights, seed) for seed in range(20)]
    best, sent = [math.inf] * 4, 0
    for number in range(rounds):
        gradient = gradients[number % 20]
        begin = time.process_time()
        residual.add(gradient)
        added = time.process_time()
        update = residual.quantise(0.01)
        quantised = time.process_time()
        code = update.encode(0, n_weights)
        encoded = time.process_time()
        add(target, code, -1.0)
        decoded = time.process_time()
        if number >= rounds // 2:
            times = (added - begin, quantised - added, encoded - quantised, decoded - encoded)
            best = [min(pair) for pair in zip(best, times, strict=True)]
            written = np.zeros(n_weights, np.float32)
            add(written, code)
            sent += int(np.count_nonzero(written))
    density = sent / (rounds - rounds // 2) / n_weights
    return Step(codec.kind, n_weights, density, *(1e6 * each for each in best))


def measure(*, quick: bool) -> dict[str, list[object]]:
    """All sections, printed as they come."""
    speeds, rices, steps = [], [], []
    print(
        f"{'codec':10}{'weights':>11}{'density':>9}{'copy':>7}{'encode':>8}{'ratio':>7}{'decode':>8}{'ratio':>7}{'code':>12}"
    )
    for n_weights in SIZES[:2] if quick else SIZES:
        values = normal(n_weights)
        rounds = 5 if quick or n_weights > 10**7 else 4_000_000 // n_weights + 15
        taus = [Threshold(tau=tau_for(values, density)) for density in DENSITIES]
        for codec in (*taus, TopK(density=0.003), Half(), Int8(), OneBit()):
            found = speed(codec, values, rounds)
            speeds.append(found)
            print(
                f"{found.codec:10}{found.n_weights:11,}{found.density:9.4f}{found.copy_gb_s:7.1f}"
                f"{found.encode_gb_s:8.2f}{found.encode_ratio:7.2f}{found.decode_gb_s:8.1f}{found.decode_ratio:7.2f}"
                f"{found.code_nbytes:12,}"
            )
    print(f"\nrice{'density':>10}{'encode':>8}{'decode':>8}{'add':>8} MB/s{'bits':>8}{'H(q)/q':>8}{'ratio':>8}")
    values = normal(1_000_000 if quick else 4_000_000)
    for density in RICE_DENSITIES:
        row = rice(values, density, 3 if quick else 9)
        rices.append(row)
        print(
            f"{row.density:14.5f}{row.encode_mb_s:8.0f}{row.decode_mb_s:8.0f}{row.add_mb_s:8.0f}{row.bits:13.3f}{row.entropy:8.3f}"
            f"{row.bits / row.entropy:8.3f}"
        )
    print(f"\nstep{'codec':>12}{'weights':>9}{'density':>9}{'add':>7}{'quantise':>10}{'encode':>8}{'decode':>8} us")
    one = Threshold(density=0.003)
    thresholds = one, one.model_copy(update={"per_layer": True}), one.model_copy(update={"most": "fit"})
    for codec in (*thresholds, TopK(), Half(), Int8(), OneBit()):
        cost = step(codec, SIZES[0], 40 if quick else 400)
        steps.append(cost)
        print(
            f"{cost.codec:>16}{cost.n_weights:9,}{cost.density:9.4f}{cost.add_us:7.1f}{cost.quantise_us:10.1f}"
            f"{cost.encode_us:8.1f}{cost.decode_us:8.1f}"
        )
    return {"speed": speeds, "rice": rices, "step": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller vectors and fewer rounds")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    found = measure(quick=options.quick)
    if options.json:
        rows = {name: [asdict(row) for row in section] for name, section in found.items()}
        options.json.write_text(json.dumps({"versions": installed_versions(), **rows}, indent=1))


if __name__ == "__main__":
    main()
