"""``ako ls``, ``status``, ``logs`` and ``cancel``: the jobs and nodes of a master. Imports no NumPy."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from dataflow.cli.common import (
    IdArgument,
    JsonFlag,
    MasterOption,
    StateDirOption,
    connect,
    examples,
    megabytes,
    plain,
    print_json,
    print_table,
    seconds,
    verbs,
)
from dataflow.runtime.client import JobStatus, NodeStatus

app = verbs()


@app.command(
    "ls",
    epilog=examples(
        "ako status",
        "ako status 3f2a",
    ),
)
def list_jobs(master: MasterOption = "", state_dir: StateDirOption = None, json: JsonFlag = False) -> None:
    """List the jobs of a master, oldest first."""
    with connect(master, state_dir) as client:
        jobs = client.jobs()
    if json:
        print_json([_plain_job(job) for job in jobs])
        return
    print_table(
        ("ID", "NAME", "STATE", "NODES", "SUBMITTED", "RAN", "ACCURACY", "REASON"),
        [
            (job.id, job.name, job.state, job.nodes, _moment(job.submitted_s), _ran(job), _accuracy(job), _why(job))
            for job in jobs
        ],
    )


@app.command()
def status(
    job: Annotated[str, typer.Argument(metavar="[ID]", help="A job's id, or its beginning; nodes if left out.")] = "",
    master: MasterOption = "",
    state_dir: StateDirOption = None,
    json: JsonFlag = False,
) -> None:
    """Show a job, or the nodes of a master."""
    with connect(master, state_dir) as client:
        if job:
            found = client.job(job)
            print_json(_plain_job(found)) if json else _show_job(found)
        else:
            nodes = client.nodes()
            print_json(nodes) if json else _show_nodes(nodes)


@app.command()
def logs(
    job: IdArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    master: MasterOption = "",
    state_dir: StateDirOption = None,
    json: JsonFlag = False,
) -> None:
    """Show what a job's processes print; with --json, an object per line."""
    with connect(master, state_dir) as client:
        names: dict[int, str] = {}
        for line in client.logs(job, follow=follow):
            if line.node not in names:  # a job that waits is placed only later
                names = dict(enumerate(client.job(job).node_names))
            if json:
                print_json(line, indent=None)
            else:
                print(f"{names.get(line.node, f'node {line.node}')} | {line.text}", flush=True)


@app.command()
def cancel(
    job: IdArgument, master: MasterOption = "", state_dir: StateDirOption = None, json: JsonFlag = False
) -> None:
    """Ask a job to stop; one that has ended is left as it is."""
    with connect(master, state_dir) as client:
        client.cancel(job)
        found = client.job(job)
    if json:
        print_json({"job": found.id, "state": found.state})
    else:
        print(f"{found.id} is {found.state}")


def _plain_job(job: JobStatus) -> object:
    fields = plain(job)
    return {**fields, "ended": job.ended}


def _show_job(job: JobStatus) -> None:
    print(f"{job.id} {job.name}: {job.state}" + (f" ({_why(job)})" if _why(job) else ""))
    print(f"submitted {_moment(job.submitted_s)}, {job.nodes} nodes" + (f", ran {_ran(job)}" if _ran(job) else ""))
    if job.last_report is not None:
        shown = (
            f"{name} {value:.6g}" for name, value in job.last_report.fields.items() if isinstance(value, float | int)
        )
        print(f"{job.last_report.port}: {', '.join(shown)}")
    if job.statistics:
        names = dict(enumerate(job.node_names))
        print_table(
            ("NODE", "STEPS", "COMPUTING", "WAITING", "SENDING", "SENT", "RECEIVED"),
            [
                (
                    names.get(each.node, each.node),
                    each.steps,
                    f"{each.busy_s.get('compute', 0.0):.1f} s",
                    f"{each.waiting_s:.1f} s",
                    f"{each.busy_s.get('network', 0.0):.1f} s",
                    megabytes(sum(each.sent_nbytes.values())),
                    megabytes(sum(each.received_nbytes.values())),
                )
                for each in job.statistics
            ],
        )


def _show_nodes(nodes: list[NodeStatus]) -> None:
    print_table(
        ("NODE", "HOST", "CORES", "TASKS", "JOB", "HEARD"),
        [(n.name, n.host, n.cores, n.tasks, n.job or "free", f"{n.silent_s:.1f} s ago") for n in nodes],
    )


def _moment(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _ran(job: JobStatus) -> str:
    """How long an ended job ran."""
    return seconds(job.ended_s - job.started_s) if job.started_s is not None and job.ended_s is not None else ""


def _accuracy(job: JobStatus) -> str:
    value = job.last_report.fields.get("accuracy") if job.last_report else None
    return f"{value:.4f}" if isinstance(value, float) else ""


def _why(job: JobStatus) -> str:
    return job.reason or (f"stopped by {job.stopped_by}" if job.stopped_by else "")
