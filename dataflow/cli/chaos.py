"""``ako chaos``: a job in the lab, with faults by seed, and what came of them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ako_jobs.jobs import Job, Prepared, load_job, prepare
from ako_jobs.result_folder import check_folder
from ako_jobs.validations import validations
from dataflow.cli.common import (
    JobArgument,
    JsonFlag,
    SettingsArgument,
    examples,
    finite,
    note,
    parse_settings,
    print_json,
    print_table,
    verbs,
)
from dataflow.cli.disturbed import Disturbed, run_disturbed
from dataflow.cli.progress import Progress
from dataflow.engine.job_life import JobState
from dataflow.errors import ConfigError, JobFailedError
from dataflow.lab.chaos import Fault, Kind, plan_faults
from dataflow.lab.chaos_disk import small_disk
from dataflow.lab.chaos_report import Outcome, counts, middle, outcomes, throughput_kept, unexplained
from dataflow.lab.cluster import check_room
from dataflow.lab.lab import as_it_is, find
from dataflow.runtime.state_dir import default_state_dir

app = verbs()

QUIET_S = 15.0
"""Seconds that a job goes on after the last fault, so that everybody can be back."""

DISK_MEGABYTES = 8

_ENDLESS = "1000000"
_WORSE = 0.005
_PRESENT = ("alive", "ended")


@dataclass(frozen=True)
class Report:
    """What a chaos run has shown.

    Args:
        seed: of its faults.
        state: what the job came to.
        outcomes: what came of each fault.
        throughput_kept: gradients from the first fault on, of those expected without any; None if unknown.
        accuracy: the last that was reported; None if none was.
        broken: invariants that do not hold, in words.
    """

    seed: int
    state: str
    outcomes: tuple[Outcome, ...]
    throughput_kept: float | None
    accuracy: float | None
    broken: tuple[str, ...]


@app.command(
    epilog=examples(
        "ako lab up 4 --rate 100mbit && ako chaos ako_jobs.integers:build --seed 1",
        "ako chaos ako data=mnist --seed 7 --seconds 120 --accuracy 0.985",
        "ako chaos ako --seed 7 --only kill,stop",
        "ako chaos ako --seed 7 --nodes 4 --dry-run --json",
    )
)
def chaos(
    job: JobArgument,
    settings: SettingsArgument = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="S", help="Decides what happens, and when.")] = 0,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", min=1, max=86400, callback=finite, metavar="SECONDS", help="For how long there are faults."
        ),
    ] = 60.0,
    only: Annotated[
        str, typer.Option("--only", metavar="KIND,...", help=f"These faults alone, of {', '.join(Kind)}.")
    ] = "",
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", min=1, metavar="N", help="Nodes of the job; all hosts if left out.")
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option(
            "--accuracy", min=0, max=1, callback=finite, metavar="A", help="Without faults; 0.5 points less will do."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="New folder for what the job makes.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the faults, and do nothing.")] = False,
    json: JsonFlag = False,
) -> None:
    """Run a job in the lab that is up, do faults to it, and check what came of that.

    What happens when is decided by the seed, the number of nodes, the seconds and the kinds. `disk` fills a disk of
    8 MB with the checkpoints of the job, and happens only where `checkpoint_every` is set. The job is stopped 15 s
    after the faults.

    These must hold: the job finishes; nobody dies whom nothing befell; all nodes are there in the end; with --accuracy,
    the job is not worse by more than 0.5 points; and what the job says of its own, if its settings have a method
    `violations`. Those of `ako_jobs.integers:build` say whether each replica holds every gradient once.
    Exit code 1: one does not hold.
    """
    if out is not None:
        check_folder(out)
    plan = None if dry_run and nodes else as_it_is(find(default_state_dir()))
    nodes = nodes or (len(plan.hosts) if plan else 0)
    values = parse_settings(settings)
    loaded = load_job(job)
    if "epochs" in loaded.config.model_fields:
        values.setdefault("epochs", _ENDLESS)
    prepared = prepare(loaded, values, nodes)
    if prepared.spec.stop.time_s is not None:
        what, fix = "the job is stopped 15 s after the faults, and at no other time", "leave it out, and see --seconds"
        raise ConfigError(what, got=f"{prepared.spec.stop.time_s:g} s", fix=fix)
    faults = plan_faults(seed, nodes, seconds, _kinds(only, keeps=bool(prepared.spec.config.get("checkpoint_every"))))
    if plan is None or dry_run:
        print_json(faults) if json else print_table(("AT", "FAULT"), [(f"{each.at_s:.1f} s", each) for each in faults])
        return
    check_room(plan, nodes)
    with ExitStack() as opened:
        disk = None
        if any(fault.kind is Kind.DISK for fault in faults):
            disk = opened.enter_context(small_disk(DISK_MEGABYTES))
            prepared = _with(prepared, keep=prepared.spec.keep.model_copy(update={"place": str(disk.path)}))
        stop = prepared.spec.stop.model_copy(update={"time_s": seconds + QUIET_S})
        progress = opened.enter_context(Progress(None))
        run = run_disturbed(
            _with(prepared, stop=stop),
            plan,
            default_state_dir(),
            faults,
            disk=disk,
            out=out,
            on_event=progress.handle,
        )
    report = _report(run, seed, _broken(run, faults, loaded, values, accuracy), nodes)
    print_json(report) if json else _show(report)
    if report.broken:
        raise JobFailedError(what=f"{len(report.broken)} invariants do not hold", got=report.broken[0])


def _kinds(only: str, *, keeps: bool) -> tuple[Kind, ...]:
    """The kinds that may happen, in the order of `Kind`."""
    known = {str(kind) for kind in Kind}
    asked = set(only.split(",")) if only else set()
    if asked - known:
        raise ConfigError(what="there is no such fault", got=sorted(asked - known)[0], fix=f"one of {', '.join(Kind)}")
    if Kind.DISK in asked and not keeps:
        raise ConfigError(what="the job keeps no checkpoints that could fill a disk", fix="set checkpoint_every")
    return tuple(kind for kind in Kind if (kind in asked or not asked) and (keeps or kind is not Kind.DISK))


def _with(prepared: Prepared, **changes: object) -> Prepared:
    return Prepared(prepared.spec.model_copy(update=changes), prepared.bundle, prepared.graph)


def _broken(
    run: Disturbed, faults: tuple[Fault, ...], job: Job, settings: dict[str, str], accuracy: float | None
) -> list[str]:
    """The invariants that do not hold."""
    record: Any = run.result.record
    broken = []
    if run.result.state is not JobState.FINISHED:
        broken.append(f"the job is {run.result.state}: {run.result.reason}")
    if len(run.injected) < len(faults):
        broken.append(f"the job ended after {len(run.injected)} of {len(faults)} faults")
    broken += unexplained(run.injected, run.events)
    last = {event.change.node: event.change for event in run.events if event.change is not None}
    broken += [f"node {node} {change}" for node, change in sorted(last.items()) if change.life not in _PRESENT]
    if accuracy is not None and (reached := _accuracy(run)) < accuracy - _WORSE:
        broken.append(f"the accuracy is {reached:.2%}, without faults {accuracy:.2%}")
    config: Any = job.config.parse(dict(settings))  # type: ignore[attr-defined]
    if hasattr(config, "violations"):
        broken += config.violations(record)
    return broken


def _accuracy(run: Disturbed) -> float:
    """The last accuracy that was reported; 0 if none was."""
    return next((float(each["accuracy"]) for each in reversed(validations(run.result.reports))), 0.0)


def _report(run: Disturbed, seed: int, broken: list[str], nodes: int) -> Report:
    kept = None
    if run.running_s is not None and run.injected:
        end_s = max(event.wall_s for event in run.events)
        kept = throughput_kept(counts(run.events), run.running_s, run.injected[0].began_s, end_s, nodes)
    found = tuple(outcomes(run.injected, run.events))
    return Report(seed, run.result.state, found, kept, _accuracy(run) or None, tuple(broken))


def _show(report: Report) -> None:
    print_table(
        ("AT", "FAULT", "DIED", "DETECTED", "JOINED", "CONTRIBUTES", "OTHERS KEPT", "WHY"),
        [
            (
                f"{each.injected.fault.at_s:.1f} s",
                each.injected.fault,
                each.buried,
                _seconds(each.detected_s),
                _seconds(each.joined_s),
                _seconds(each.contributing_s),
                None if each.others_kept is None else f"{each.others_kept:.0%}",
                each.reason,
            )
            for each in report.outcomes
        ],
    )
    for name, values in (
        ("detected", [each.detected_s for each in report.outcomes]),
        ("contributes again", [each.contributing_s for each in report.outcomes]),
    ):
        if (found := middle(values)) is not None:
            print(f"{name} after {found[0]:.2f} s (median), {found[1]:.2f} s (largest)")
    if report.throughput_kept is not None:
        print(f"throughput kept: {report.throughput_kept:.0%}")
    if report.accuracy is not None:
        print(f"accuracy: {report.accuracy:.2%}")
    for each in report.broken:
        note(f"broken: {each}")
    holds = f"{len(report.broken)} invariants do not hold" if report.broken else "every invariant holds"
    print(f"{report.state}; {holds}")


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} s"
