"""Figures of faults: how soon they are noticed, how soon nodes are back, and what the others lose meanwhile.

    sudo python benchmarks/faults.py kills stops cuts calm sleepers disks chaos accuracy resumed [--seeds 3]
        [--first 0] [--quick] [--json FILE] [--cores 0.4] [--data mnist] [--data-dir DIR]

Each row makes a lab of four hosts of its own at 1 Gbit/s, which share the machine's cores, or have --cores each, and
runs jobs in it. All but one run `ako_jobs.integers`, whose replicas show which gradients they hold: each run is checked
for that too.

kills: the job process of a host, drawn by the seed, is ended with SIGKILL, in a phase that the seed decides: while the
    job is deployed, at its very beginning, in the middle, again while the node comes back, while a checkpoint is
    written, shortly before the end. One in each run, or two. Six seeds have each phase once.
stops: job processes are stopped for 6 s, or all processes of a host; two of each in a run.
cuts: a link passes nothing for 6 s, or nothing in one direction; two of each in a run.
calm: job processes are stopped for 1 s, one after the other, while a busy process runs on each host.
sleepers: all processes of a host are stopped for 30 s, and go on; one in each run.
disks: the disk of 8 MB with the checkpoints is full for 4 s, or read-only; one run of each with each seed.
chaos: `ako chaos` with each seed, for 60 s, all kinds of faults among them.
accuracy: `ako` learns --data while a worker is killed; compared with the same without.
resumed: everything is killed, and the job goes on from its checkpoint; see faults_checkpoints.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import faults_checkpoints
from faults_runs import CLOCK, HOSTS, INTEGERS, Place, Row, at_least, disturbed, exact, made, told, within, wrong

from dataflow.cli.common import print_table
from dataflow.cli.disturbed import Disturbed
from dataflow.errors import LabError
from dataflow.lab import lab
from dataflow.lab.chaos import Fault, Kind, Since
from dataflow.lab.chaos_disk import SmallDisk, small_disk
from dataflow.lab.chaos_report import middle
from dataflow.lab.commands import run as run_command
from dataflow.runtime.checkpoint_store import newest_whole
from dataflow.runtime.folders import LocalFolder
from dataflow.runtime.signals import ended_in_order

FIRST_S, APART_S, STOPPED_S = 5.0, 12.0, 6.0
HEALED_S = 10.0
"""Seconds that a run of row kills goes on after its last fault."""


class Phase(StrEnum):
    """When a worker is killed."""

    DEPLOYED = "while the job is deployed"
    BEGINS = "at the very beginning"
    MIDDLE = "in the middle"
    RETURNS = "again while it comes back"
    KEEPS = "while a checkpoint is written"
    ENDS = "shortly before the end"


@dataclass(frozen=True)
class Kill:
    """A run with a kill: when, the faults, after how many seconds the job is stopped, and further settings."""

    phase: Phase
    faults: tuple[Fault, ...]
    time_s: float
    settings: dict[str, Any]


def spread(kinds: Sequence[Kind], seed: int, for_s: float = 0.0, apart_s: float = APART_S) -> list[Fault]:
    """Faults one after the other, each on a host, or a link, drawn at random, no host twice in a row."""
    random, found, at_s = Random(seed), list[Fault](), FIRST_S
    for number, kind in enumerate(kinds):
        host, other = random.sample([each for each in range(HOSTS) if not found or each != found[-1].host], 2)
        between = kind in (Kind.CUT, Kind.ONE_WAY)
        found.append(Fault(round(at_s + random.uniform(0, 2), 2), kind, for_s, host, other if between else None))
        at_s = FIRST_S + (number + 1) * (apart_s + for_s)
    return found


def kill_of(seed: int) -> Kill:
    """The run of row kills with this seed."""
    random, phase = Random(seed), tuple(Phase)[seed % len(Phase)]
    host, early_s, late_s = random.randrange(HOSTS), random.uniform(0.0, 1.5), FIRST_S + random.uniform(0.0, 2.0)
    killed = Fault(late_s, Kind.KILL, 0.0, host)
    match phase:
        case Phase.DEPLOYED:
            return Kill(phase, (replace(killed, at_s=early_s, since=Since.PROCESS),), HEALED_S, {})
        case Phase.BEGINS:
            return Kill(phase, (replace(killed, at_s=early_s / 3),), HEALED_S, {})
        case Phase.MIDDLE:
            return Kill(phase, (killed,), late_s + HEALED_S, {})
        case Phase.RETURNS:
            again = replace(killed, at_s=early_s, since=Since.PROCESS)
            return Kill(phase, (killed, again), late_s + 4.0 + HEALED_S, {})
        case Phase.KEEPS:
            kept = replace(killed, since=Since.CHECKPOINT)
            return Kill(phase, (kept,), late_s + 1.0 + HEALED_S, {"checkpoint_every": 400})
        case Phase.ENDS:
            return Kill(phase, (killed,), late_s + early_s / 1.5, {})


def kills(place: Place, seeds: Sequence[int], _quick: bool) -> list[Row]:
    done = [killed(place, seed) for seed in seeds]
    runs = [run for _, run in done]
    # A node that is killed again has only then the time that it needs to come back, and at the end it need not.
    back = [each for kill, run in done if kill.phase is not Phase.ENDS for each in told([run])[-1:]]
    rows = [
        within("kill -9 in any phase: detected", 0.5, [each.detected_s for each in told(runs)]),
        within("kill -9: contributes again (95% of them)", 5.0, [each.contributing_s for each in back], part=0.95),
        at_least("kill -9: the others' throughput after the first second", 0.9, [each.others_kept for each in back]),
        exact("kill -9", runs),
    ]
    tried = [phase for phase in Phase if any(kill.phase is phase for kill, _ in done)]
    return rows + [in_phase(phase, [run for kill, run in done if kill.phase is phase]) for phase in tried]


def killed(place: Place, seed: int) -> tuple[Kill, Disturbed]:
    """The run of row kills with a seed, and what it was to be; told as soon as it is over."""
    kill = kill_of(seed)
    run = disturbed(place, kill.faults, time=kill.time_s, **kill.settings)
    row = in_phase(kill.phase, [run])
    print(f"seed {seed}: {row.what}: {row.got}; {'; '.join(wrong(run)) or 'exact'}", file=sys.stderr, flush=True)
    return kill, run


def in_phase(phase: Phase, runs: Sequence[Disturbed]) -> Row:
    """What came of kills in one phase; what was asked is asked of all phases together."""
    found, last = told(runs), [each for run in runs for each in told([run])[-1:]]
    detected, back = middle(each.detected_s for each in found), middle(each.contributing_s for each in last)
    kept = [each.others_kept for each in last if each.others_kept is not None]
    said = [
        f"detected {detected[0]:.2f} s, at most {detected[1]:.2f} s" if detected else "not detected",
        f"contributes {back[0]:.1f} s, at most {back[1]:.1f} s" if back else "does not contribute again",
        f"others {median(kept):.0%}, at least {min(kept):.0%}" if kept else "",
    ]
    fine = sum(not wrong(run) for run in runs)
    of = f"{len(found)} kills, {fine} of {len(runs)} runs exact"
    return Row(f"kill -9 {phase}", "", "; ".join(filter(None, said)), fine == len(runs), of)


def stops(place: Place, seeds: Sequence[int], quick: bool) -> list[Row]:
    kinds = [Kind.STOP, Kind.PAUSE] * (1 if quick else 2)
    runs = [disturbed(place, spread(kinds, seed, STOPPED_S)) for seed in seeds]
    found = told(runs)
    return [
        *(
            within(f"{name}: detected", 2.5, [each.detected_s for each in found if each.injected.fault.kind is kind])
            for kind, name in ((Kind.STOP, "SIGSTOP of a job process"), (Kind.PAUSE, "SIGSTOP of a whole host"))
        ),
        exact("SIGSTOP", runs),
    ]


def cuts(place: Place, seeds: Sequence[int], quick: bool) -> list[Row]:
    kinds = [Kind.CUT, Kind.ONE_WAY] * (1 if quick else 2)
    runs = [disturbed(place, spread(kinds, seed, STOPPED_S)) for seed in seeds]
    found = told(runs)
    return [
        *(
            within(f"{name}: detected", 2.5, [each.detected_s for each in found if each.injected.fault.kind is kind])
            for kind, name in ((Kind.CUT, "link cut both ways"), (Kind.ONE_WAY, "link cut one way"))
        ),
        exact("link cuts", runs),
    ]


def calm(place: Place, seeds: Sequence[int], quick: bool) -> list[Row]:
    stops_each = 5 if quick else 12
    with busy(place):
        runs = [disturbed(place, spread([Kind.STOP] * stops_each, seed, 1.0, apart_s=2.0)) for seed in seeds]
    dead = [event.change for run in runs for event in run.events if event.change and event.change.reason]
    minutes = sum(float(str(run.result.record["run_s"])) for run in runs) / 60
    of = f"{stops_each * len(seeds)} stops in {minutes:.1f} minutes"
    return [Row("SIGSTOP of 1 s, busy processors: deaths", "0", str(len(dead)), not dead, of), exact("the same", runs)]


def sleepers(place: Place, seeds: Sequence[int], quick: bool) -> list[Row]:
    runs = [disturbed(place, spread([Kind.PAUSE], seed, 10.0 if quick else 30.0)) for seed in seeds]
    back = [None if each.joined_s is None else each.joined_s - each.injected.fault.for_s for each in told(runs)]
    return [within("SIGSTOP of 30 s: joined after SIGCONT", 5.0, back), exact("SIGSTOP of 30 s", runs)]


class ReadOnlyDisk(SmallDisk):
    """A disk that is not filled, but takes nothing more."""

    def fill(self) -> None:
        """Have it be read only, once nobody writes a file."""
        end_s = CLOCK.now() + 1.0
        while True:
            try:
                return self._remount("ro")
            except LabError:
                if CLOCK.now() > end_s:
                    raise
                CLOCK.sleep(0.001)

    def free(self) -> None:
        """Have it take files again."""
        self._remount("rw")

    def _remount(self, how: str) -> None:
        run_command(("mount", "-o", f"remount,{how}", str(self.path)))


def disks(place: Place, seeds: Sequence[int], _quick: bool) -> list[Row]:
    rows = []
    for name, kind in (("full", SmallDisk), ("read-only", ReadOnlyDisk)):
        runs, again = [], 0
        for seed in seeds:
            fault = Fault(FIRST_S + Random(seed).uniform(0.0, 1.0), Kind.DISK, 4.0)
            with small_disk(8) as disk:
                run = disturbed(place, [fault], disk=kind(disk.path), checkpoint_every=100)
                runs.append(run)
                kept = LocalFolder(disk.path / run.result.job)
                again += newest_whole(kept)[0].wall_s > run.injected[0].ended_s
        of = f"{len(runs)} runs"
        rows += [
            within(f"disk {name}: warned of", 1.0, [warned_s(run) for run in runs]),
            at_least(f"disk {name}: throughput", 0.9, [each.others_kept for each in told(runs)]),
            Row(f"disk {name}: keeps checkpoints again", str(len(runs)), str(again), again == len(runs), of),
            exact(f"disk {name}", runs),
        ]
    return rows


def warned_s(run: Disturbed) -> float | None:
    """Seconds from the first fault of a run until the job was warned of a checkpoint."""
    began_s = run.injected[0].began_s
    told_s = (each.wall_s for each in run.events if "checkpoint" in each.warning and each.wall_s >= began_s)
    return next((at_s - began_s for at_s in told_s), None)


def accuracy(place: Place, seeds: Sequence[int], quick: bool) -> list[Row]:
    epochs = 4 if quick else 12
    settings: dict[str, Any] = {"job": "ako", "epochs": epochs, "time": None, "batch": 8, "average": 0} | place.data
    calm_runs = [disturbed(place, [], **settings, seed=seed) for seed in seeds]
    faults = [Fault(Random(seed).uniform(1, 6), Kind.KILL, 0.0, seed % HOSTS) for seed in seeds]
    struck = [disturbed(place, [fault], **settings, seed=seed) for fault, seed in zip(faults, seeds, strict=True)]
    worse = [
        100 * (last_accuracy(before) - last_accuracy(after)) for before, after in zip(calm_runs, struck, strict=True)
    ]
    hit = sum(run.injected[0].hit for run in struck if run.injected)  # a short job may be over by then
    got = f"{sum(worse) / len(worse):.2f} on average, {max(worse):.2f} at most"
    holds = sum(worse) / len(worse) <= 0.5 and hit == len(struck)
    return [Row("kill -9: points of accuracy lost", "<= 0.5", got, holds, f"{len(seeds)} pairs, {hit} killed")]


def chaos(place: Place, seeds: Sequence[int], quick: bool) -> list[Row]:
    fine, kept = 0, list[float | None]()
    for seed in seeds:
        command = [sys.executable, "-m", "dataflow.cli.main", "chaos", INTEGERS, "checkpoint_every=400", "--json"]
        command += ["--seed", str(seed), "--seconds", "20" if quick else "60"]
        environment = os.environ | {"AKO_STATE_DIR": str(place.state_dir)}
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        silent = {"broken": [f"it ended with {ended.returncode}"], "throughput_kept": None}
        report: dict[str, Any] = json.loads(ended.stdout) if ended.stdout else silent
        fine += ended.returncode == 0
        kept.append(report["throughput_kept"])
        print(f"seed {seed}: {'; '.join(report['broken']) or 'every invariant holds'}", file=sys.stderr, flush=True)
    known = sorted(each for each in kept if each is not None)
    of = f"{len(seeds)} seeds" + (f", {median(known):.0%} of the throughput kept" if known else "")
    return [Row("ako chaos: every invariant holds", str(len(seeds)), str(fine), fine == len(seeds), of)]


def resumed(_place: Place, seeds: Sequence[int], _quick: bool) -> list[Row]:
    found = faults_checkpoints.resume(len(seeds))
    lost = [each["intervals_lost_at_most"] for each in found]
    got = f"{median(lost):.2f} (median), {max(lost):.2f} (largest)"
    return [
        within("everything killed: the job runs again", 10.0, [each["running_s"] for each in found]),
        Row("everything killed: intervals of checkpoints lost", "<= 1", got, max(lost) <= 1, f"{len(found)} runs"),
    ]


ROWS: dict[str, Callable[[Place, Sequence[int], bool], list[Row]]] = {
    each.__name__: each for each in (kills, stops, cuts, calm, sleepers, disks, chaos, accuracy, resumed)
}


def last_accuracy(run: Disturbed) -> float:
    return float([each["accuracy"] for each in run.result.reports if each.get("accuracy") is not None][-1])


@contextmanager
def busy(place: Place) -> Iterator[None]:
    """A process on each host that computes without end, inside the ``with`` block."""
    endless = (sys.executable, "-c", "while True: pass")
    commands = [lab.enter(place.plan, place.plan.host(host), endless) for host in range(HOSTS)]
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
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
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--quick", action="store_true", help="fewer faults in a run")
    parser.add_argument("--cores", type=float, help="of each host; all share those of the machine if not given")
    parser.add_argument("--data", default="digits", help="images of row accuracy")
    parser.add_argument("--data-dir", help="folder with them, if not the cache")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = {"data": options.data} | ({"data_dir": options.data_dir} if options.data_dir else {})
    found: list[Row] = []
    for name in options.rows or ROWS:
        with ended_in_order(), made(options.cores, data) as place:
            rows = ROWS[name](place, range(options.first, options.first + options.seeds), options.quick)
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
