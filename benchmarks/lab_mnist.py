"""Time to 98.5% test accuracy on MNIST on the hosts of a lab: Ako and its peers against PyTorch DDP over gloo.

    sudo python benchmarks/lab_mnist.py --data-dir DIR --hosts 4 --cpu 0.4 --rate 100mbit --seeds 5 --json result.json
    sudo python benchmarks/lab_mnist.py --data-dir DIR --systems ako ddp --set ako="every=8 p=2" --set ddp="lr=0.2"
    sudo python benchmarks/lab_mnist.py --data-dir DIR --tune ddp
    sudo python benchmarks/lab_mnist.py --data-dir DIR --quick

The time is that of the second of two successive validations that hold 98.5%, from the first mini-batch on, validations
included. Runs alternate, one seed after another; one that never gets there is said to, and counts in no median. The lab
is one of this script's own, and removed.

Alike for all: the MNIST network of ako.txt with Glorot's initial weights, the same normalisation, all 60,000 images for
training, none held out, no warm start, plain mini-batches in a new order every epoch, of which each host has its share,
one compute thread and one share of the CPU for each host, and a validation on the 10,000 test images after each 12,000
images that all hosts together have trained on. A cosine ends at the last epoch, wherever a run stops before.

ako, ps, all_to_all: what `ako lab run` does. Every worker validates its share of the test images at its own step.
all_to_all_whole: all-to-all without a codec, which is limited by its links.
ako_torch: Ako with PyTorch's kernels (`mnist_torch_job.py`).

ddp, ddp_fp16, ddp_powersgd: PyTorch's DistributedDataParallel over gloo, a process on each host, with no hook for the
gradients, with `fp16_compress_hook`, and with PowerSGD of rank 2 from step 10 on; see `ddp_mnist.py`. Every rank
validates its share of the test images, which is faster for DDP than what its users mostly write, that rank 0 validates
while the others wait: `--first-validates` has that. Its time begins behind a barrier, when all ranks have their data.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from mnist_one_node import HOLD, TARGET, reached, spread
from own_lab import own_lab

from ako_jobs.jobs import load_job, prepare
from ako_jobs.run import execute
from dataflow.errors import AkoError, ConfigError
from dataflow.lab import lab
from dataflow.lab.cluster import lab_cluster
from dataflow.lab.plan import Host, LabPlan
from dataflow.lab.state import in_use
from dataflow.quantities import bytes_per_second

HERE = Path(__file__).resolve().parent
TUNING_SEED = 100
LEAVE_S = 60.0

JOBS = {
    "ako": "ako",
    "ps": "parameter_server",
    "all_to_all": "all_to_all",
    "all_to_all_whole": "all_to_all",
    "ako_torch": str(HERE / "mnist_torch_job.py"),
}
"""The systems that are jobs of ours."""

HOOKS = {"ddp": "plain", "ddp_fp16": "fp16", "ddp_powersgd": "powersgd"}
"""The systems that are DDP, and how they send gradients."""

AKO = {
    "lr": "0.16",
    "batch": "32",
    "init": "glorot",
    "schedule": "cosine",
    "warmup": "0.3",
    "epochs": "1.45",
    "average": "0.053",
    "tau": "96",
    "codec": "threshold:density=0.03",
}
DDP = {
    "lr": "0.08",
    "batch": "32",
    "momentum": "0.85",
    "nesterov": "true",
    "init": "glorot",
    "schedule": "cosine",
    "warmup": "0.3",
    "epochs": "1.2",
    "average": "0.07",
}

AT_ONCE = AKO | {
    "p": "1",
    "momentum": "0.6",
    "nesterov": "true",
    "warmup": "0.2",
    "epochs": "1.25",
    "codec": "threshold:density=0.1",
}
"""Ako that tells all peers all of a round."""

SETTINGS: dict[str, dict[str, str]] = {
    "ako": AT_ONCE | {"every": "2", "local_steps": "3", "lr": "0.08", "average": "0.06"},
    "ps": AKO | {"consistency": "ssp", "servers": "2", "lr": "0.2", "batch": "40", "epochs": "1.3"},
    "all_to_all": AKO | {"consistency": "ssp", "lr": "0.12", "batch": "40", "epochs": "1.6"},
    "all_to_all_whole": DDP | {"consistency": "bsp"},
    "ako_torch": AT_ONCE | {"every": "2", "local_steps": "2", "lr": "0.09", "batch": "36", "average": "0.07"},
    "ddp": DDP,
    "ddp_fp16": DDP,
    "ddp_powersgd": DDP,
}
"""What each system runs with, unless `--set` says otherwise.

What images a system needs was looked for first where no lab is needed: for DDP by its steps on one process, for Ako in
the simulator, six to sixteen seeds each from 100 on, to the target held at two validations; the best of these then in
the lab, with such seeds. Earlier choices for `ako` were made with seeds 0 to 4, the last one was not. DDP's runs on one
process were before its third convolution was written as a linear layer, the same function.

DDP, 32 images a host, averages over 0.07 epochs: Nesterov's momentum of 0.85, 0.08 and a warm-up of 0.3 epochs hold
the target after 48,000 or 60,000 images, all of eight seeds; 0.9, 0.06, a warm-up of 0.5 and plain momentum, which it
had before, 60,000 or 72,000 with most seeds. Cosines of 1, 1.2 and 2 epochs do not differ. 40 images, 0.07 to 0.12,
momentum 0.8 to 0.9: 60,000, six of eight at best, in steps that are longer: no better in the lab; 48 and 64 images,
momentum 0 to 0.9, rates 0.09 to 0.8: mostly 72,000 and more; 28 images: 48,000, in more steps than 32. Before that
0.015 to 0.3, 16 to 64 images, uniform initial weights, no warm-up, no averages, steps in place of a cosine: 60,000 to
156,000.

Ako with `threshold`, averaged weights and p=1, so that each weight comes to the others after `every` gradients: 20 to
64 images, rates 0.02 to 0.35, momentum 0 to 0.9, plain and Nesterov's, warm-ups of 0.1 to 0.4 epochs, averages over
0.03 to 0.14, densities 0.03 to 0.3, every 1 to 10, cosines of 0.8 to 1.45 epochs, weight decay, taus of each layer,
He's initial weights. A momentum of 0.6 and a density of 0.1 let a round be of six gradients where it was of four with
0.4 and 0.06, and both make it 60,000 images with most seeds, as does DDP. These six are two gradients of three local
steps: rounds of one gradient of six steps need less of the processor and more images (docs/decisions/0041). Tried
besides: 1 to 16 local steps, with 12 to 28 images; then, with convolutions by tiles, 2 to 6 of 28 and 32 images,
which differ by less than their seeds do; warm starts of 0.03 to 0.1 epochs save the images that they take. Last, on
H of docs/performance.md, 36 to 48 images at 0.08 to 0.1: 1.04 to 1.1 times as many images a second as 32. 40 at 0.1
needed 60,000 with five of seeds 100 to 105, where 32 did with three, but 72,000 and more in six of the next seven
runs, with seeds 0 to 3, where 32 did in three: given up. 44 and 48 images at times never get there. More
momentum at lower rates, 0.85 at 0.02, needs 72,000: gradients that come late make it diverge without codes (`int8`,
`fp16`), whose thresholds clip what a round may change. `ako_torch` takes larger mini-batches, since more of its time
goes by the mini-batch.

`ps` was tried with 1, 2 and 4 servers, `all_to_all` with four rates, on four hosts at 100 Mbit/s, one to three seeds,
without momentum; with momentums of 0.5 and 0.6 neither was faster (one seed). `all_to_all_whole` computes what DDP
does.

All this is for four hosts; what eight need is in docs/performance.md.
"""

TRIED: dict[str, tuple[float, ...]] = {"lr": (0.6, 1.6), "batch": (0.5, 2.0), "epochs": (2 / 3, 4 / 3)}
"""What `--tune` tries of each setting, as multiples of what a system begins with: alike for all, seven runs each."""


@dataclass
class Run:
    """One run: validations as seconds from the first mini-batch on, images of all hosts, test accuracy.

    Args:
        system: its name.
        seed: of initial weights and orders.
        settings: what it ran with.
        target: accuracy that is to be held.
        start_s: seconds from the start of the processes to the first mini-batch, and from its last one to their end.
        run_s: seconds in between.
        sent_nbytes: what the interfaces of all hosts have counted, headers and start among it.
        validations: in order.
        failed: why it broke off.
    """

    system: str
    seed: int
    settings: Mapping[str, str]
    target: float = TARGET
    start_s: float = 0.0
    run_s: float = 0.0
    sent_nbytes: int = 0
    validations: list[tuple[float, int, float]] = field(default_factory=list)
    failed: str = ""

    @property
    def images_per_s(self) -> float:
        """Images of all hosts a second, validations included."""
        return self.validations[-1][1] / self.validations[-1][0] if self.validations else 0.0

    @property
    def reached(self) -> tuple[float, int] | None:
        """Seconds and images until the target had been held; None if it never was."""
        return reached(self.validations, self.target)

    def row(self) -> str:
        """The run as a line."""
        held, best = self.reached, max((accuracy for *_, accuracy in self.validations), default=0.0)
        said = f"{held[0]:6.1f} s {held[1]:8,} images" if held else f"never ({self.failed or 'not in time'})"
        words = " ".join(f"{key}={value}" for key, value in self.settings.items())
        traffic = f"{self.images_per_s:6,.0f} images/s, {self.sent_nbytes / 1e6:5,.0f} MB, start {self.start_s:.0f} s"
        return f"{self.system:12} seed {self.seed:<3} {said}; best {best:.2%}; {traffic}  {words}"

    def to_json(self) -> dict[str, Any]:
        """The run with what it reached."""
        return asdict(self) | {"reached": self.reached}


@dataclass(frozen=True)
class Bench:
    """Where runs take place: a lab that is up, and what all of them have in common."""

    plan: LabPlan
    state_dir: Path
    data_dir: Path
    validate_every: int
    limit_s: float
    first_validates: bool
    target: float

    def run(self, system: str, settings: Mapping[str, str], seed: int) -> Run:
        """A run of one system."""
        run = Run(system, seed, settings, self.target)
        before, begin = self._sent_nbytes(), time.perf_counter()
        if system in JOBS:
            self._run_ours(run)
        else:
            self._run_ddp(run)
        run.start_s = time.perf_counter() - begin - run.run_s
        run.sent_nbytes = self._sent_nbytes() - before
        print(run.row(), flush=True)
        return run

    def _run_ours(self, run: Run) -> None:
        words = {
            "data": "mnist",
            "data_dir": str(self.data_dir),
            "holdout": "0",
            "warm_start": "0",
            "validate_every": str(self.validate_every),
            "target": str(self.target),
            "hold": str(HOLD),
            "time": str(self.limit_s),
            "seed": str(run.seed),
        }
        hosts = len(self.plan.hosts)
        prepared = prepare(load_job(JOBS[run.system]), {**words, **run.settings}, hosts)
        result = execute(prepared, cluster=partial(lab_cluster, self.plan, self.state_dir))
        if result.interrupted:
            raise KeyboardInterrupt
        run.failed, run.run_s = result.reason, float(str(result.record["run_s"]))
        for report in result.reports:
            if report["port"] == "validate.results":
                found = report["time_s"], report["images"], report["accuracy"]
                # What the last step left is validated once more at the end.
                if not run.validations or run.validations[-1][1] != found[1]:
                    run.validations.append(found)

    def _run_ddp(self, run: Run) -> None:
        with in_use(self.state_dir, alone=False):
            ranks = [self._rank(run, rank) for rank in range(len(self.plan.hosts))]
            try:
                said, errors = ranks[0].communicate(timeout=self.limit_s + LEAVE_S)
            except subprocess.TimeoutExpired:
                run.failed = "does not end"
                return
            finally:
                others = list[str]()
                for process in ranks[1:]:
                    process.kill()
                    others.append(process.communicate()[1])
                ranks[0].kill()
                ranks[0].wait()
        if not said:
            last = [text.strip().splitlines()[-1] for text in others if text.strip()]
            run.failed = f"ended with status {ranks[0].returncode}: {errors[-1000:]}; other ranks: {last}"
            return
        found = json.loads(said)
        run.run_s = found["run_s"]
        run.validations = [(seconds, images, accuracy) for seconds, images, accuracy in found["validations"]]

    def _rank(self, run: Run, rank: int) -> subprocess.Popen[str]:
        floats = ("lr", "momentum", "epochs", "gamma", "warmup", "average")
        kinds = {"batch": int, "nesterov": truth} | dict.fromkeys(floats, float)
        job = {
            **{key: kinds.get(key, str)(value) for key, value in run.settings.items()},
            "rank": rank,
            "world": len(self.plan.hosts),
            "address": self.plan.host(0).address,
            "hook": HOOKS[run.system],
            "data_dir": str(self.data_dir),
            "seed": run.seed,
            "validate_every": self.validate_every,
            "shared": not self.first_validates,
            "limit": self.limit_s,
            "target": self.target,
        }
        station = self.plan.host(rank)
        command = (sys.executable, str(HERE / "ddp_mnist.py"), json.dumps(job))
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": station.device}
        return subprocess.Popen(
            lab.enter(self.plan, station, command),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def _sent_nbytes(self) -> int:
        return sum(station.sent_nbytes for station in lab.status(self.plan)[:-1])


@contextmanager
def bench(options: argparse.Namespace) -> Iterator[Bench]:
    """A lab, up inside the ``with`` block."""
    host = Host(rate=bytes_per_second(options.rate), cores=options.cpu or None)
    with own_lab((host,) * options.hosts) as (plan, state_dir):
        yield Bench(
            plan,
            state_dir,
            options.data_dir,
            options.validate_every,
            options.limit,
            options.first_validates,
            options.target,
        )


def tune(
    begin: Mapping[str, str], values: Mapping[str, Sequence[str]], execute: Callable[[Mapping[str, str]], Run]
) -> list[Run]:
    """The runs of a search that changes one setting after the other and goes on from the best.

    Args:
        begin: the settings of the first run.
        values: what to try of each setting, in order, besides what it is.
        execute: makes a run.
    """
    runs = [execute(begin)]
    for key, others in values.items():
        settings = best(runs).settings
        runs += [execute({**settings, key: value}) for value in others]
    return runs


def best(runs: Sequence[Run]) -> Run:
    """The run that held the target first; if none did, the one that came closest."""

    def order(run: Run) -> tuple[float, float]:
        seconds = run.reached[0] if run.reached else math.inf
        return seconds, -max((accuracy for *_, accuracy in run.validations), default=0.0)

    return min(runs, key=order)


def multiples(settings: Mapping[str, str]) -> dict[str, list[str]]:
    """What to try of each setting, after `TRIED`; numbers of images stay whole."""
    tried = dict[str, list[str]]()
    for key, factors in TRIED.items():
        found = [float(settings[key]) * factor for factor in factors]
        tried[key] = [str(round(value)) if key == "batch" else f"{value:.3g}" for value in found]
    return tried


def summary(systems: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """A row per system: how many runs got there, and when; ratios are those of runs with the same seed."""
    times = {(run.system, run.seed): found[0] for run in runs if (found := run.reached)}
    lines = [f"{'system':12} reached   seconds [quartiles]     images/s       MB   times {systems[0]}'s [quartiles]"]
    for system in systems:
        mine = [run for run in runs if run.system == system]
        found = [run for run in mine if (system, run.seed) in times]
        ratios = [
            times[system, run.seed] / times[systems[0], run.seed] for run in found if (systems[0], run.seed) in times
        ]
        lines.append(
            f"{system:12} {len(found):2} of {len(mine):<2}  {spread([times[system, run.seed] for run in found]):22}"
            f"  {median(run.images_per_s for run in mine):8,.0f} {median(run.sent_nbytes for run in mine) / 1e6:8,.0f}"
            f"   {spread(ratios)}"
        )
    return lines


def settings_of(text: str) -> dict[str, str]:
    """Settings as they are typed: ``every=8 p=2``."""
    return dict(word.split("=", 1) for word in text.split())


def truth(text: str) -> bool:
    """What is meant by ``true`` or ``false``.

    Raises:
        ConfigError: something else is typed.
    """
    if text not in ("true", "false"):
        raise ConfigError(what="nesterov: must be true or false", got=text, fix="write nesterov=true or nesterov=false")
    return text == "true"


def values_of(words: Sequence[str]) -> dict[str, list[str]]:
    """Values of settings as they are typed: ``every=4,8 p=2``."""
    return {key: text.split(",") for key, text in settings_of(" ".join(words)).items()}


def lab_parser(description: str | None) -> argparse.ArgumentParser:
    """What the command lines of all benchmarks in a lab have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the MNIST files")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--cpu", type=float, default=0.4, help="cores of each host; 0: no share")
    parser.add_argument("--json", type=Path, help="write everything there")
    return parser


def parse() -> argparse.Namespace:
    """The command line."""
    parser = lab_parser(__doc__)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--systems", nargs="+", choices=[*JOBS, *HOOKS], default=[*JOBS, *HOOKS])
    parser.add_argument(
        "--set", action="append", default=[], metavar='SYSTEM="KEY=VALUE ..."', help="besides the table"
    )
    parser.add_argument(
        "--tune", nargs="+", default=[], metavar="SYSTEM", choices=[*JOBS, *HOOKS], help="try settings with one seed"
    )
    parser.add_argument("--try", dest="tried", nargs="+", metavar="KEY=A,B,C", help="what --tune tries in turn")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a run")
    parser.add_argument("--target", type=float, default=TARGET, help="accuracy to be held")
    parser.add_argument("--validate-every", type=int, default=12_000, help="images between two validations")
    parser.add_argument(
        "--first-validates", action="store_true", help="with DDP, rank 0 validates, and the others wait"
    )
    parser.add_argument("--quick", action="store_true", help="one seed, 10 seconds a run: whether everything works")
    return parser.parse_args()


def main() -> None:
    options = parse()
    chosen = {system: dict(settings) for system, settings in SETTINGS.items()}
    for text in options.set:
        system, _, words = text.partition("=")
        if system not in chosen:
            raise ConfigError(what="--set: must begin with a system", got=text, fix=f"one of {', '.join(chosen)}")
        chosen[system] |= settings_of(words)
    if options.quick:
        options.seeds, options.limit = 1, 10.0
    runs = list[Run]()
    with bench(options) as where:
        if options.tune:
            for system in options.tune:
                tried = multiples(chosen[system]) if options.tried is None else values_of(options.tried)
                found = tune(chosen[system], tried, partial(where.run, system, seed=TUNING_SEED))
                print(f"best: {best(found).row()}", flush=True)
                runs += found
        else:
            runs = [
                where.run(system, chosen[system], seed) for seed in range(options.seeds) for system in options.systems
            ]
            print("\n" + "\n".join(summary(options.systems, runs)))
    if options.json:
        common = {"lab": where.plan.text, "target": options.target, "hold": HOLD}
        result = common | {"runs": [run.to_json() for run in runs]}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except AkoError as error:
        sys.exit(f"error: {error}")
