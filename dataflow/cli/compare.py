"""``ako compare``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ako_jobs.cluster_options import ClusterOptions
from ako_jobs.compare.comparison import Comparison, read_comparison
from ako_jobs.compare.report import NO_PICTURES, can_draw, write_report
from ako_jobs.compare.runs import check_cases, claim, run_comparison, runs
from ako_jobs.compare.table import cells, document, remarks, rows
from dataflow.cli.common import JsonFlag, examples, master_address, note, parse_settings, print_json, print_table, verbs
from dataflow.cli.compare_progress import CompareProgress
from dataflow.cli.emulated import LabFlag, cluster_maker, held, lab_plan
from dataflow.cli.simulated import (
    BandwidthOption,
    ComputeOption,
    CoresOption,
    CpuOption,
    FaultOption,
    LatencyOption,
    SharesOption,
    SimFlag,
    SpeedOption,
    StepTimeOption,
    TasksOption,
    cluster_options,
)
from dataflow.errors import ConfigError
from dataflow.home import expanded
from dataflow.lab.cluster import check_room
from dataflow.lab.lab import as_it_is
from dataflow.lab.plan import LabPlan
from dataflow.runtime.cluster_processes import Nursery
from dataflow.runtime.state_dir import default_state_dir

app = verbs()


@app.command(
    epilog=examples(
        'ako compare ako "parameter_server servers=1" all_to_all --sim --bandwidth 100mbit --target 0.9 --out results',
        "ako compare ako all_to_all epochs=5 --sim --sweep nodes=2,4,8 --sweep bandwidth=100mbit,1gbit --out results",
        'ako compare "ako p=1" "ako p=3" --seeds 1 --out results',
        "ako compare examples/compare_digits.toml --out results",
        "ako compare ako all_to_all --lab --out results",
    )
)
def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB|FILE.toml|KEY=VALUE",
            help='Jobs, each with settings of its own in quotes: "parameter_server servers=1"; a file that holds a '
            "comparison; settings of all jobs.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Folder for runs, table and pictures; one begun before goes on."),
    ],
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", min=1, metavar="N", help="How many nodes a job runs on [default: 4].")
    ] = None,
    master: Annotated[
        str, typer.Option("--master", metavar="HOST:PORT", help="Run the jobs there instead of on this machine.")
    ] = "",
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="KEY=A,B,C",
            help="Run every job with each value of a setting, of nodes or, with --sim, of bandwidth, latency, shares, "
            "compute, step_time, tasks, speed, cpu, cores or fault; given often, with each combination.",
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="ACCURACY", help="Measure time and epochs to this test accuracy: 0.99."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, metavar="N", help="Run each with seeds 0 to N - 1 [default: 3].")
    ] = None,
    json: JsonFlag = False,
    lab: LabFlag = False,
    sim: SimFlag = False,
    bandwidth: BandwidthOption = None,
    latency: LatencyOption = "",
    shares: SharesOption = "",
    compute: ComputeOption = "",
    step_time: StepTimeOption = "",
    tasks: TasksOption = None,
    speed: SpeedOption = None,
    cpu: CpuOption = None,
    cores: CoresOption = None,
    fault: FaultOption = None,
) -> None:
    """Run several jobs with several seeds and put what came out side by side.

    Every job is checked before the first one runs. Runs that finished are kept, each in its folder: the same command
    goes on with those that are missing. Exit code 1: some failed, the table says which; 130: ended by Ctrl-C.

    The table is printed and written as Markdown and JSON; pictures need the extra [plots].
    """
    cluster = cluster_options(bandwidth, latency, shares, compute, step_time, tasks, speed, cpu, cores, fault)
    variants, settings, files = _sorted(words)
    file = _file(files)
    if not sim and cluster is not None and (file is None or file.cluster is None):
        raise ConfigError(what="options of a simulated cluster without --sim", fix="add --sim, or leave them out")
    said: dict[str, Any] = file.model_dump(exclude_unset=True) if file else {"variants": {}}
    said["variants"] |= variants
    said["settings"] = {**said.get("settings", {}), **settings}
    said["sweep"] = {**said.get("sweep", {}), **_swept(sweep)}
    if sim or cluster is not None:
        given = (cluster or ClusterOptions()).model_dump(exclude_defaults=True)
        said["cluster"] = {**(said.get("cluster") or {}), **given}
    plan = lab_plan(lab)
    if plan is not None:
        said |= {"nodes": said.get("nodes", len(plan.hosts)), "lab": plan.text}
    options = {"nodes": nodes, "master": master or None, "seeds": seeds, "target": target}
    said |= {key: value for key, value in options.items() if value is not None}
    comparison = _with_lab(Comparison.parse(said), plan)
    if comparison.master:
        master_address(comparison.master, default_state_dir())
    for variant, warnings in check_cases(comparison).items():
        for warning in warnings:
            note(f"{variant}: {warning}")
    out = expanded(out)
    with claim(out, comparison), held(plan):
        with CompareProgress(len(runs(comparison))) as progress, Nursery() as nursery:
            outcomes = run_comparison(comparison, out, progress, cluster_maker(plan, nursery))
        table = rows(comparison, outcomes)
        write_report(comparison, table, outcomes, out)
    if json:
        print_json(document(comparison, table, outcomes))
    else:
        print_table(*cells(comparison, table))
    for remark in remarks(comparison, outcomes):
        note(remark)
    if not can_draw():
        note(NO_PICTURES)
    note(f"results are in {out}")
    if outcomes.interrupted:
        raise typer.Exit(130)
    if outcomes.failed:
        raise typer.Exit(1)


def _sorted(words: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str], list[str]]:
    """Variants by what the user wrote, settings of all, and files."""
    variants: dict[str, dict[str, Any]] = {}
    settings: list[str] = []
    files: list[str] = []
    for word in words:
        try:
            job, *own = shlex.split(word) or [""]
        except ValueError as error:
            fix = 'write it like "parameter_server servers=1"'
            raise ConfigError(what=f"not a job and its settings: {error}", got=word, fix=fix) from None
        name = " ".join(word.split())
        if "=" in job:
            settings.append(word)
        elif job.endswith(".toml"):
            files.append(word)
        elif name in variants:
            raise ConfigError(what="a job is given twice", got=name, fix="give it once; --seeds runs it several times")
        else:
            variants[name] = {"job": job, "settings": parse_settings(own)}
    return variants, parse_settings(settings), files


def _with_lab(comparison: Comparison, plan: LabPlan | None) -> Comparison:
    """A comparison with its lab as it is now; what that has no room for, or has no lab, is refused."""
    if plan is None:
        if comparison.lab:
            raise ConfigError(what="the comparison is one in a lab", got=comparison.lab, fix="add --lab")
        return comparison
    for case in comparison.cases():
        check_room(plan, case.nodes)
    return comparison.model_copy(update={"lab": as_it_is(plan).text})


def _file(names: Sequence[str]) -> Comparison | None:
    if len(names) > 1:
        raise ConfigError(what="more than one comparison is given", got=list(names), fix="give one file")
    return read_comparison(expanded(names[0])) if names else None


def _swept(texts: Sequence[str] | None) -> dict[str, list[str]]:
    settings = parse_settings(texts, "KEY=A,B, as in nodes=2,4")
    return {key: values.split(",") for key, values in settings.items()}
