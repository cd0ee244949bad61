"""What ``ako run`` and ``ako submit`` do once their arguments are read: jobs are imported, prepared and followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from ako_jobs.cluster_options import ClusterOptions
from ako_jobs.jobs import load_job, prepare
from ako_jobs.resume import going_on
from ako_jobs.run import Result, execute, record_text
from ako_jobs.simulate import execute_simulation, prepare_simulation
from ako_jobs.validations import validations
from dataflow.cli.common import master_address, megabytes, note, print_json, seconds
from dataflow.cli.emulated import cluster_maker
from dataflow.cli.progress import Progress
from dataflow.engine.job_life import JobState
from dataflow.errors import JobFailedError
from dataflow.home import expanded
from dataflow.lab.plan import LabPlan
from dataflow.plan.job import JobSpec, Resume
from dataflow.runtime.client import Client
from dataflow.runtime.cluster_processes import Nursery
from dataflow.runtime.state_dir import default_state_dir


@dataclass(frozen=True)
class Where:
    """Where a job runs: at a master, in the lab, simulated, or else on processes of this machine.

    Args:
        master: its address, if any.
        plan: of the lab, if it is there.
        simulated: the cluster that is simulated, if one is.
        nursery: what processes of this machine are forked from.
    """

    master: str
    plan: LabPlan | None
    simulated: ClusterOptions | None
    nursery: Nursery


def run(
    job: str,
    settings: Mapping[str, str],
    nodes: int,
    where: Where,
    *,
    out: Path | None,
    json: str,
    record: bool,
    resume: str,
) -> None:
    """Run a job and follow it; see `ako run --help`."""
    go: Callable[..., Result]
    if where.simulated is not None:
        simulation = prepare_simulation(load_job(job), settings, nodes, where.simulated.model())
        simulation = simulation.recorded() if record else simulation
        prepared, go = simulation.prepared, partial(execute_simulation, simulation)
    else:
        prepared = prepare(load_job(job), settings, nodes)
        prepared = prepared.recorded() if record else prepared
        prepared = going_on(prepared, Resume(folder=_absolute(resume))) if resume else prepared
        address = master_address(where.master, default_state_dir()) if where.master else ""
        go = partial(execute, prepared, master=address, cluster=cluster_maker(where.plan, where.nursery))
    kept = _keeps_nothing(prepared.spec) if where.simulated is not None else []
    for warning in (*prepared.spec.warnings, *_nobody_joins(prepared.spec, where), *kept):
        note(warning)
    with Progress(prepared.epochs) as progress:
        go = partial(go, on_submitted=progress.name) if where.master else go
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
    for warning in _nothing_learnt(prepared.spec, result):
        note(warning)
    _check_end(result, out, where.master)


def submit(job: str, settings: Mapping[str, str], nodes: int, open_client: Callable[[], Client], *, json: bool) -> None:
    """Put a job into a master's queue; see `ako submit --help`."""
    prepared = prepare(load_job(job), settings, nodes)
    with open_client() as client:
        submitted = client.submit(prepared.spec, prepared.bundle)
    if json:
        print_json({"job": submitted, "name": prepared.spec.name, "nodes": nodes, "warnings": prepared.spec.warnings})
        return
    for warning in prepared.spec.warnings:
        note(warning)
    print(submitted)


def _absolute(place: str) -> str:
    """A folder's path from the root; an address as it is."""
    return place if "://" in place else str(expanded(place).resolve())


def _keeps_nothing(spec: JobSpec) -> list[str]:
    """What to tell of a simulated job that was to keep checkpoints."""
    if not spec.config.get("checkpoint_every"):
        return []
    return ["a simulated job keeps no checkpoints: checkpoint_every does nothing here"]


def _nobody_joins(spec: JobSpec, where: Where) -> list[str]:
    """What to tell of a job that nodes may join, where none does."""
    if where.master or spec.places <= spec.nodes:
        return []
    how = "they do where --master is given"
    if where.simulated is not None:
        if where.simulated.model().joining:
            return []
        how = "--fault join@10 has one join at second 10"
    return [f"max_nodes={spec.max_nodes}: nobody joins, as there are {spec.nodes} nodes; {how}"]


def _nothing_learnt(spec: JobSpec, result: Result) -> list[str]:
    """What to tell of a job that has read all its data, and was to learn from them."""
    totals: Any = result.record["totals"]
    learns = any(operator.gather for operator in spec.graph.operators)
    if result.state is not JobState.FINISHED or result.stopped_by != "epochs" or not learns or totals["gradients"]:
        return []
    return ["no gradient was made: the operators between source and compute have dropped all mini-batches"]


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
