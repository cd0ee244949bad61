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
    print_json,
    print_table,
    seconds,
    verbs,
)
from dataflow.engine.membership import BURIED
from dataflow.errors import one_line
from dataflow.observe.condition import Condition, MeasuredJob, conditions, group
from dataflow.observe.slow import what_is_slow
from dataflow.plain import plain
from dataflow.runtime.replies import JobStatus, NodeStatus

app = verbs()


@app.command(
    "ls",
    epilog=examples(
        "ako ls",
        "ako ls --json | jq '.[].state'",
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


@app.command(epilog=examples("ako status", "ako status 3f2a"))
def status(
    job: Annotated[str, typer.Argument(metavar="[ID]", help="A job's id, or its beginning; nodes if left out.")] = "",
    master: MasterOption = "",
    state_dir: StateDirOption = None,
    json: JsonFlag = False,
) -> None:
    """Show a job and how its nodes are doing, or the nodes of a master.

    Of a job that runs: what each node did in the last few seconds, and which node or link is slow, if one is. Of one
    that has ended: the same since its start. CPU is of one core; SENT is what peers acknowledged per second, GOODPUT
    the same while anything was on its way.
    """
    with connect(master, state_dir) as client:
        if job:
            found = client.job(job)
            print_json(measured_job(found)) if json else show_job(found)
        else:
            nodes = client.nodes()
            print_json(nodes) if json else _show_nodes(nodes)


@app.command(epilog=examples("ako logs 3f2a", "ako logs 3f2a --follow"))
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


@app.command(epilog=examples("ako cancel 3f2a"))
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


def _plain_job(job: JobStatus) -> dict[str, object]:
    fields = plain(job)
    del fields["earlier"]
    return {**fields, "ended": job.ended}


def measured_job(job: JobStatus) -> dict[str, object]:
    """What `show_job` prints and more, for JSON."""
    measured = _measured(job)
    return {**_plain_job(job), "conditions": conditions(measured), "slow": what_is_slow(measured)}


def _measured(job: JobStatus) -> MeasuredJob:
    """What its nodes have told; while it runs, without what those told that have died since, or left."""
    told = [*job.earlier, *job.statistics]
    if not job.ended:
        alive = {each.node: None if each.life in BURIED else each.incarnation for each in job.changes}
        told = [each for each in told if alive.get(each.node, each.incarnation) == each.incarnation]
    return MeasuredJob(job.id, job.name, job.node_names, group(told))


def show_job(job: JobStatus) -> None:
    """Print a job and how its nodes are doing."""
    why = _why(job, 1000)
    print(f"{job.id} {job.name}: {job.state}" + (f" ({why})" if why else ""))
    print(f"submitted {_moment(job.submitted_s)}, {job.nodes} nodes" + (f", ran {_ran(job)}" if _ran(job) else ""))
    for from_s, to_s in job.master_away:
        print(f"the master was away from {_moment(from_s)} to {_moment(to_s)}")
    for warning in job.warnings:
        print(f"warning: {one_line(warning.text)}, at {_moment(warning.wall_s)}")
    if job.last_report is not None:
        shown = (
            f"{name} {value:.6g}" for name, value in job.last_report.fields.items() if isinstance(value, float | int)
        )
        print(f"{job.last_report.port}: {', '.join(shown)}")
    measured = _measured(job)
    for change in job.changes:
        print(f"{measured.node_name(change.node)} {change}, since {_moment(change.wall_s)}")
    states = conditions(measured)
    if states:
        print(f"nodes, over the last {states[0].seconds:.0f} s:" if job.earlier else "nodes, since the start:")
        _show_conditions(states)
    for sentence in what_is_slow(measured):
        print(sentence)
    if job.last_lines and job.failed_node is not None:
        print(f"the last that {measured.node_name(job.failed_node)} printed:")
        print("\n".join(job.last_lines))


def _show_conditions(states: list[Condition]) -> None:
    columns: dict[str, list[str | None]] = {
        "NODE": [each.name for each in states],
        "GRADIENTS/S": [f"{each.gradients_per_s:.3g}" for each in states],
        "COMPUTING": [f"{each.computing:.0%}" for each in states],
        "BLOCKED": [f"{each.blocked:.0%}" for each in states],
        "IDLE": [f"{each.idle:.0%}" for each in states],
        "CPU": [_known(each.cpu, "{:.0%}") for each in states],
        "P": [_known(each.p, "{:g}") for each in states],
        "EVERY": [_known(each.every, "{:g}") for each in states],
        "PREDICTED": [_rate(each.predicted_nbytes_s) for each in states],
        "LAG": [_known(each.lag, "{:g}") for each in states],
        "GAP": [_known(each.gap, "{:.2g}") for each in states],
        "NORMALISED": [_known(each.normalised_gap, "{:.2g}") for each in states],
        "COMPRESSION": [_known(each.compression, "{:.3g}") for each in states],
        "SENT": [_rate(each.sent_nbytes_s) for each in states],
        "GOODPUT": [_rate(each.goodput_nbytes_s) for each in states],
        "POISONED": [_known(each.poisoned, "{}") for each in states],
    }
    shown = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    print_table(tuple(shown), list(zip(*shown.values(), strict=True)))


def _known(value: float | None, form: str) -> str | None:
    return None if value is None else form.format(value)


def _rate(nbytes_s: float | None) -> str | None:
    return None if nbytes_s is None else f"{nbytes_s / 1e6:.3g} MB/s"


def _show_nodes(nodes: list[NodeStatus]) -> None:
    print_table(
        ("NODE", "HOST", "CORES", "TASKS", "JOB", "HEARD"),
        [(n.name, n.host, n.cores, n.tasks, _busy(n), f"{n.silent_s:.1f} s ago") for n in nodes],
    )


def _busy(node: NodeStatus) -> str:
    """What a node does."""
    if node.drained:
        return f"leaves {node.job}" if node.job else "drained"
    return node.job or "free"


def _moment(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _ran(job: JobStatus) -> str:
    """How long an ended job ran."""
    return "" if job.ran_s is None else seconds(job.ran_s)


def _accuracy(job: JobStatus) -> str:
    value = job.last_report.fields.get("accuracy") if job.last_report else None
    return f"{value:.4f}" if isinstance(value, float) else ""


def _why(job: JobStatus, limit: int = 300) -> str:
    return one_line(job.reason, limit) or (f"stopped by {job.stopped_by}" if job.stopped_by else "")
