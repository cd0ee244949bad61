"""``ako run`` and ``ako submit``: their arguments. What they do is in `training`, imported once these are read."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from ako_jobs.built_in import BUILT_IN
from ako_jobs.cluster_options import ClusterOptions
from ako_jobs.result_folder import check_folder
from dataflow.cli.common import (
    JobArgument,
    JsonFlag,
    MasterOption,
    NodesOption,
    SettingsArgument,
    StateDirOption,
    connect,
    examples,
    parse_settings,
    verbs,
)
from dataflow.cli.emulated import LabFlag, held, lab_plan
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
from dataflow.runtime.cluster_processes import Nursery

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
    given = parse_settings(settings)
    plan = lab_plan(lab)
    with held(plan), Nursery() as nursery:
        if job in BUILT_IN and not (sim or master or lab):
            with suppress(OSError):  # the cluster's processes will say so
                nursery.begin([BUILT_IN[job]])  # it imports while this process does
        training = _training()
        training.run(
            job,
            given,
            nodes or (4 if plan is None else len(plan.hosts)),
            training.Where(master, plan, (cluster or ClusterOptions()) if sim else None, nursery),
            out=out,
            json=json,
            record=record,
            resume=resume,
        )


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
    _training().submit(job, parse_settings(settings), nodes, partial(connect, master, state_dir), json=json)


def _training() -> ModuleType:
    """What does it; it imports for a second."""
    return importlib.import_module("dataflow.cli.training")


def _check_resume(place: str, *, sim: bool, record: bool) -> None:
    if place and (sim or record):
        what = "what goes on from a checkpoint is neither simulated nor recorded"
        raise ConfigError(what, got=place, fix="leave out --sim and --record, or --resume")


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
    if file and file != "-" and (path.is_dir() or not path.parent.is_dir() or not os.access(place, os.W_OK)):
        raise ConfigError(
            what="the record cannot be written there", got=file, fix="name a file in a folder that you may write to"
        )
