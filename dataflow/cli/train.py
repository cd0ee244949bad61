"""``ako run`` and ``ako submit``."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ako_jobs.jobs import Prepared, load_job, prepare
from ako_jobs.resume import going_on
from ako_jobs.run import Result, check_folder, execute, record_text
from ako_jobs.simulate import execute_simulation, prepare_simulation
from ako_jobs.validations import validations
from dataflow.cli.common import (
    JobArgument,
    JsonFlag,
    MasterOption,
    NodesOption,
    SettingsArgument,
    StateDirOption,
    connect,
    examples,
    master_address,
    megabytes,
    note,
    parse_settings,
    print_json,
    seconds,
    verbs,
)
from dataflow.cli.emulated import LabFlag, cluster_maker, lab_plan
from dataflow.cli.progress import Progress
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
from dataflow.engine.job_life import JobState
from dataflow.errors import ConfigError, JobFailedError
from dataflow.plan.job import JobSpec, Resume
from dataflow.runtime.state_dir import default_state_dir
from dataflow.sim.model import ClusterModel

app = verbs()


@app.command(
    epilog=examples(
        "ako run ako",
        "ako run ako data=mnist data_dir=~/mnist lr=0.05 batch=16 p=5 --nodes 4 --json out.json",
        "ako run parameter_server servers=1 consistency=ssp tau=4 --nodes 4",
        "ako run parameter_server servers=all",
        "ako run all_to_all consistency=bsp epochs=5 --out results",
        "ako run my_job.py radius=2 --nodes 2",
        "ako run ako --nodes 64 --sim --bandwidth 1gbit --compute gamma",
        "ako lab up 4 --rate 100mbit && ako run ako --lab",
        "ako run ako --record --out results && ako replay results",
        "ako check ako --settings",
    )
)
def run(
    job: JobArgument,
    settings: SettingsArgument = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", "-n", min=1, metavar="N", help="How many nodes it runs on [default: 4; all hosts of a lab]."
        ),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", metavar="HOST:PORT", help="Run it there instead of on this machine.")
    ] = "",
    lab: LabFlag = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="New folder for the model, the record, the curves and artifacts."),
    ] = None,
    json: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write the run's record there; - is standard output.")
    ] = "",
    record: Annotated[
        bool, typer.Option("--record", help="Keep in --out what `ako replay` needs to make the same run again.")
    ] = False,
    resume: Annotated[
        str,
        typer.Option("--resume", metavar="DIR", help="Go on from the newest checkpoint there: checkpoint_dir/ID."),
    ] = "",
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
    """Run a job and follow it until it has ended.

    Without --master, processes are started on this machine for this job alone. Ctrl-C cancels the job and keeps what
    it made; a second Ctrl-C ends everything at once. Exit code 1: the job failed or was cancelled; 130: by Ctrl-C.

    With --lab, node i runs on host i of the lab that `ako lab up` has made, and what nodes send crosses its network.

    With --sim, all nodes live in this process and time is virtual: real gradients, modelled network and machines.
    """
    cluster = cluster_options(bandwidth, latency, shares, compute, step_time, tasks, speed, cpu, cores, fault)
    if not sim and cluster is not None:
        raise ConfigError(what="options of a simulated cluster without --sim", fix="add --sim, or leave them out")
    _check_place(sim=sim, master=master, lab=lab)
    _check_resume(resume, sim=sim, record=record)
    if record and out is None:
        raise ConfigError(what="--record has no folder to keep the record in", fix="add --out DIR")
    if out is not None:
        check_folder(out)  # before anything is measured
    _check_target(json)
    go: Callable[..., Result]
    plan = lab_plan(lab)
    nodes = nodes or (4 if plan is None else len(plan.hosts))
    if sim:
        model = ClusterModel() if cluster is None else cluster.model()
        simulation = prepare_simulation(load_job(job), parse_settings(settings), nodes, model)
        simulation = simulation.recorded() if record else simulation
        prepared, go = simulation.prepared, partial(execute_simulation, simulation)
    else:
        prepared = prepare(load_job(job), parse_settings(settings), nodes)
        prepared = prepared.recorded() if record else prepared
        prepared = going_on(prepared, Resume(folder=_absolute(resume))) if resume else prepared
        address = master_address(master, default_state_dir()) if master else ""
        go = partial(execute, prepared, master=address, cluster=cluster_maker(plan))
    for warning in (*prepared.spec.warnings, *_nobody_joins(prepared.spec, master)):
        note(warning)
    with Progress(_epochs(prepared)) as progress:
        go = partial(go, on_submitted=progress.name) if master else go
        result = go(out=out, on_event=progress.handle)
    if json == "-":
        print(record_text(result), end="")
    elif result.state is not JobState.FAILED:
        print(_summary(result))
    if json and json != "-":
        try:
            Path(json).write_text(record_text(result))
        except OSError as error:
            what, fix = f"the run has ended, but its record cannot be written: {error}", "name a file on another disk"
            raise JobFailedError(what, got=json, fix=fix) from error
    if out is not None:
        note(f"results are in {out}")
    _check_end(result, out, master)


@app.command(
    epilog=examples(
        "ako submit ako epochs=5 --nodes 2",
        "ako submit my_job.py radius=2 --master 127.0.0.1:7461",
        "ako logs -f ID",
    )
)
def submit(
    job: JobArgument,
    settings: SettingsArgument = None,
    nodes: NodesOption = 4,
    master: MasterOption = "",
    state_dir: StateDirOption = None,
    json: JsonFlag = False,
) -> None:
    """Put a job into a master's queue and print its id.

    The token is taken from $AKO_TOKEN, or from the master's state directory.
    """
    prepared = prepare(load_job(job), parse_settings(settings), nodes)
    with connect(master, state_dir) as client:
        submitted = client.submit(prepared.spec, prepared.bundle)
    if json:
        print_json({"job": submitted, "name": prepared.spec.name, "nodes": nodes, "warnings": prepared.spec.warnings})
        return
    for warning in prepared.spec.warnings:
        note(warning)
    print(submitted)


def _check_resume(place: str, *, sim: bool, record: bool) -> None:
    if place and (sim or record):
        what = "what goes on from a checkpoint is neither simulated nor recorded"
        raise ConfigError(what, got=place, fix="leave out --sim and --record, or --resume")


def _absolute(place: str) -> str:
    """A folder's path from the root; an address as it is."""
    return place if "://" in place else str(Path(place).expanduser().resolve())


def _nobody_joins(spec: JobSpec, master: str) -> list[str]:
    """What to tell of a job that nodes may join, where none can."""
    if master or spec.places <= spec.nodes:
        return []
    return [
        f"max_nodes={spec.max_nodes}: nobody joins, as there are {spec.nodes} nodes; they do where --master is given"
    ]


def _check_place(*, sim: bool, master: str, lab: bool) -> None:
    """Refuse to run a job in several places at once.

    Raises:
        ConfigError: more than one is asked for.
    """
    if sim and master:
        what = "a simulation runs in this process, not at a master"
        raise ConfigError(what, got=master, fix="leave out --master")
    if lab and (sim or master):
        what = "a job runs in the lab, simulated, or at a master"
        raise ConfigError(what, fix="leave out --sim and --master, or --lab")


def _check_target(file: str) -> None:
    """Refuse what could not be written once the job is over."""
    path = Path(file).absolute()
    place = path if path.exists() else path.parent
    if file and file != "-" and (path.is_dir() or not place.exists() or not os.access(place, os.W_OK)):
        raise ConfigError(
            what="the record cannot be written there", got=file, fix="name a file in a folder that you may write to"
        )


def _epochs(prepared: Prepared) -> float | None:
    epochs = prepared.spec.config.get("epochs")
    return float(epochs) if isinstance(epochs, int | float) else None


def _summary(result: Result) -> str:
    """What became of a job, for people."""
    record: Any = result.record
    totals, parts = record["totals"], [f"{result.state} after {seconds(record['run_s'])}"]
    if result.reason:
        parts.append(result.reason)
    if result.stopped_by:
        parts[0] += f", stopped by {result.stopped_by}"
    if found := validations(result.reports):
        last = found[-1]
        parts.append(f"test accuracy {last['accuracy']:.2%} at epoch {last['epoch']:.2f}")
    parts.append(f"{totals['gradients']:,} gradients")
    parts.append(f"{megabytes(totals['sent_nbytes'])} sent")
    if totals["poisoned"]:
        parts.append(f"{totals['poisoned']:,} poisoned")
    if totals["staleness_mean"] is not None:
        parts.append(f"staleness {totals['staleness_mean']:.1f} (at most {totals['staleness_max']:.0f})")
    elif totals["lag_mean"] is not None:
        parts.append(f"lag {totals['lag_mean']:.1f}")
    return "; ".join(parts)


def _check_end(result: Result, out: Path | None, master: str) -> None:
    if result.interrupted:
        raise typer.Exit(130)
    if result.state is JobState.FAILED:
        record: Any = result.record
        if record["last_lines"]:
            note("\n".join(("the last that the node printed:", *record["last_lines"])))
        fix = f"see `ako logs {result.job} --master {master}`" if master else "--out DIR would keep its log"
        fix = fix if out is None else f"its log is {out / 'job.log'}"
        raise JobFailedError(what=f"the job failed: {result.reason}", fix=fix)
    if result.state is JobState.CANCELLED:
        raise JobFailedError(what="the job was cancelled")
