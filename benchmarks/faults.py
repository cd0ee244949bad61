"""Figures of faults: how soon they are noticed, how soon nodes are back, and what the others lose meanwhile.

    sudo python benchmarks/faults.py kills stops cuts calm sleepers accuracy resumed [--seeds 3] [--quick] [--json FILE]
        [--cores 0.4] [--data mnist]

Each row makes a lab of four hosts of its own at 1 Gbit/s, which share the machine's cores, or have --cores each, and
runs jobs in it. All but one run `ako_jobs.integers`, whose replicas show which gradients they hold: each run is checked
for that too.

kills: job processes are ended with SIGKILL at random moments; four in each run, 12 s apart.
stops: job processes are stopped for 6 s, or all processes of a host; two of each in a run.
cuts: a link passes nothing for 6 s, or nothing in one direction; two of each in a run.
calm: job processes are stopped for 1 s, one after the other, while a busy process runs on each host.
sleepers: all processes of a host are stopped for 30 s, and go on; one in each run.
accuracy: `ako` learns --data while a worker is killed; compared with the same without.
resumed: everything is killed, and the job goes on from its checkpoint; see faults_checkpoints.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from subprocess import DEVNULL, Popen
from typing import Any

import faults_checkpoints

from ako_jobs.jobs import load_job, prepare
from dataflow.cli.common import print_table
from dataflow.cli.disturbed import Disturbed, run_disturbed
from dataflow.clock import SystemClock
from dataflow.lab import lab
from dataflow.lab.chaos import Fault, Kind
from dataflow.lab.chaos_report import Outcome, outcomes, unexplained
from dataflow.lab.plan import Host, LabPlan, lab_name
from dataflow.runtime.signals import ended_in_order

HOSTS, RATE = 4, 1e9 / 8
FIRST_S, APART_S, STOPPED_S, LAST_S = 5.0, 12.0, 6.0, 12.0
CLOCK = SystemClock()


@dataclass(frozen=True)
class Row:
    """What was asked for, and what came out."""

    what: str
    asked: str
    got: str
    holds: bool
    of: str


@dataclass(frozen=True)
class Place:
    """A lab, the state directory that it is noted in, and the images that jobs in it learn."""

    plan: LabPlan
    state_dir: Path
    data: str


@contextmanager
def made(cores: float | None, data: str) -> Iterator[Place]:
    """A lab, gone when the ``with`` block ends."""
    with tempfile.TemporaryDirectory() as path:
        state_dir = Path(path)
        plan = LabPlan(name=lab_name(state_dir), hosts=(Host(rate=RATE, cores=cores),) * HOSTS)
        lab.up(plan, state_dir, CLOCK)
        try:
            yield Place(plan, state_dir, data)
        finally:
            lab.down(state_dir, CLOCK, force=True)


def disturbed(
    place: Place, faults: Sequence[Fault], job: str = "ako_jobs.integers:build", **settings: Any
) -> Disturbed:
    """A run that ends `LAST_S` after the last fault, unless its settings say otherwise."""
    end_s = max((fault.at_s + fault.for_s for fault in faults), default=0.0) + LAST_S
    prepared = prepare(load_job(job), {"time": end_s} | settings, HOSTS)
    return run_disturbed(prepared, place.plan, place.state_dir, faults)


def spread(kinds: Sequence[Kind], seed: int, for_s: float = 0.0, apart_s: float = APART_S) -> list[Fault]:
    """Faults one after the other, each on a host, or a link, drawn at random, no host twice in a row."""
    random, found, at_s = Random(seed), list[Fault](), FIRST_S
    for number, kind in enumerate(kinds):
        host, other = random.sample([each for each in range(HOSTS) if not found or each != found[-1].host], 2)
        between = kind in (Kind.CUT, Kind.ONE_WAY)
        found.append(Fault(round(at_s + random.uniform(0, 2), 2), kind, for_s, host, other if between else None))
        at_s = FIRST_S + (number + 1) * (apart_s + for_s)
    return found


def wrong(run: Disturbed) -> list[str]:
    """What does not hold of any run of integers."""
    config: Any = load_job("ako_jobs.integers:build").config
    found = list(config.violations(run.result.record)) + unexplained(run.injected, run.events)
    return found if run.result.state == "FINISHED" else [*found, f"{run.result.state}: {run.result.reason}"]


def kills(place: Place, seeds: int, quick: bool) -> list[Row]:
    runs = [disturbed(place, spread([Kind.KILL] * (1 if quick else 4), seed)) for seed in range(seeds)]
    found = told(runs)
    return [
        within("kill -9: detected", 0.5, [each.detected_s for each in found]),
        within("kill -9: contributes again (95% of them)", 5.0, [each.contributing_s for each in found], part=0.95),
        at_least("kill -9: the others' throughput after the first second", 0.9, [each.others_kept for each in found]),
        exact("kill -9", runs),
    ]


def stops(place: Place, seeds: int, quick: bool) -> list[Row]:
    kinds = [Kind.STOP, Kind.PAUSE] * (1 if quick else 2)
    runs = [disturbed(place, spread(kinds, seed, STOPPED_S)) for seed in range(seeds)]
    found = told(runs)
    return [
        *(
            within(f"{name}: detected", 2.5, [each.detected_s for each in found if each.injected.fault.kind is kind])
            for kind, name in ((Kind.STOP, "SIGSTOP of a job process"), (Kind.PAUSE, "SIGSTOP of a whole host"))
        ),
        exact("SIGSTOP", runs),
    ]


def cuts(place: Place, seeds: int, quick: bool) -> list[Row]:
    kinds = [Kind.CUT, Kind.ONE_WAY] * (1 if quick else 2)
    runs = [disturbed(place, spread(kinds, seed, STOPPED_S)) for seed in range(seeds)]
    found = told(runs)
    return [
        *(
            within(f"{name}: detected", 2.5, [each.detected_s for each in found if each.injected.fault.kind is kind])
            for kind, name in ((Kind.CUT, "link cut both ways"), (Kind.ONE_WAY, "link cut one way"))
        ),
        exact("link cuts", runs),
    ]


def calm(place: Place, seeds: int, quick: bool) -> list[Row]:
    stops_each = 5 if quick else 12
    with busy(place):
        runs = [disturbed(place, spread([Kind.STOP] * stops_each, seed, 1.0, apart_s=2.0)) for seed in range(seeds)]
    dead = [event.change for run in runs for event in run.events if event.change and event.change.reason]
    minutes = sum(float(str(run.result.record["run_s"])) for run in runs) / 60
    of = f"{stops_each * seeds} stops in {minutes:.1f} minutes"
    return [Row("SIGSTOP of 1 s, busy processors: deaths", "0", str(len(dead)), not dead, of), exact("the same", runs)]


def sleepers(place: Place, seeds: int, quick: bool) -> list[Row]:
    runs = [disturbed(place, spread([Kind.PAUSE], seed, 10.0 if quick else 30.0)) for seed in range(seeds)]
    back = [None if each.joined_s is None else each.joined_s - each.injected.fault.for_s for each in told(runs)]
    return [within("SIGSTOP of 30 s: joined after SIGCONT", 5.0, back), exact("SIGSTOP of 30 s", runs)]


def accuracy(place: Place, seeds: int, quick: bool) -> list[Row]:
    settings = {"job": "ako", "data": place.data, "epochs": 4 if quick else 12, "time": None, "batch": 8}
    calm_runs = [last_accuracy(disturbed(place, [], **settings, seed=seed)) for seed in range(seeds)]
    killed = [
        last_accuracy(
            disturbed(place, [Fault(Random(seed).uniform(1, 6), Kind.KILL, 0.0, seed % HOSTS)], **settings, seed=seed)
        )
        for seed in range(seeds)
    ]
    worse = [100 * (before - after) for before, after in zip(calm_runs, killed, strict=True)]
    got = f"{sum(worse) / len(worse):.2f} on average, {max(worse):.2f} at most"
    return [Row("kill -9: points of accuracy lost", "<= 0.5", got, sum(worse) / len(worse) <= 0.5, f"{seeds} pairs")]


def resumed(_place: Place, seeds: int, _quick: bool) -> list[Row]:
    found = faults_checkpoints.resume(seeds)
    return [within("everything killed: the job runs again", 10.0, [each["running_s"] for each in found])]


ROWS: dict[str, Callable[[Place, int, bool], list[Row]]] = {
    each.__name__: each for each in (kills, stops, cuts, calm, sleepers, accuracy, resumed)
}


def told(runs: Sequence[Disturbed]) -> list[Outcome]:
    return [each for run in runs for each in outcomes(run.injected, run.events) if each.injected.hit]


def last_accuracy(run: Disturbed) -> float:
    return float([each["accuracy"] for each in run.result.reports if each.get("accuracy") is not None][-1])


def within(what: str, asked_s: float, values: Sequence[float | None], part: float = 1.0) -> Row:
    """A row of seconds, of which a part must not be more than so many; one that never happened counts as too many."""
    known = sorted(float("inf") if value is None else value for value in values)
    got = f"{median(known):.2f} s (median), {known[-1]:.2f} s (largest)" if known else "nothing"
    holds = bool(known) and sum(value <= asked_s for value in known) >= part * len(known)
    return Row(what, f"<= {asked_s:g} s", got, holds, f"{len(known)} faults")


def at_least(what: str, asked: float, values: Sequence[float | None]) -> Row:
    known = sorted(value for value in values if value is not None)
    got = f"{median(known):.0%} (median), {known[0]:.0%} (least)" if known else "nothing"
    return Row(what, f">= {asked:.0%}", got, bool(known) and median(known) >= asked, f"{len(known)} faults")


def exact(what: str, runs: Sequence[Disturbed]) -> Row:
    bad = [text for run in runs for text in wrong(run)]
    fine = sum(not wrong(run) for run in runs)
    for text in bad:
        print(text, file=sys.stderr)
    return Row(
        f"{what}: jobs that finish, every replica exact", str(len(runs)), str(fine), not bad, f"{len(runs)} runs"
    )


@contextmanager
def busy(place: Place) -> Iterator[None]:
    """A process on each host that computes without end, inside the ``with`` block."""
    endless = (sys.executable, "-c", "while True: pass")
    started = [Popen(lab.enter(place.plan, place.plan.host(host), endless), stdout=DEVNULL) for host in range(HOSTS)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=tuple(ROWS))
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row")
    parser.add_argument("--quick", action="store_true", help="fewer faults in a run")
    parser.add_argument("--cores", type=float, help="of each host; all share those of the machine if not given")
    parser.add_argument("--data", default="digits", help="images of row accuracy")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[Row] = []
    for name in options.rows or ROWS:
        with ended_in_order(), made(options.cores, options.data) as place:
            rows = ROWS[name](place, options.seeds, options.quick)
        for row in rows:
            print(f"{row.what}: {row.got}", file=sys.stderr, flush=True)
        found += rows
    print_table(
        ("ROW", "ASKED", "GOT", "OF", ""),
        [(each.what, each.asked, each.got, each.of, "" if each.holds else "MISSED") for each in found],
    )
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=2) + "\n")
    sys.exit(0 if all(each.holds for each in found) else 1)


if __name__ == "__main__":
    main()
