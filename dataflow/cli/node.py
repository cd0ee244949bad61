"""``ako node`` and ``ako node drain``. Imports no NumPy."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from dataflow.cli.common import (
    JsonFlag,
    MasterOption,
    StateDirOption,
    connect,
    examples,
    finite,
    master_address,
    print_json,
    print_line,
    seconds,
    verbs,
)
from dataflow.cli.serving import HostOption, InsecureFlag
from dataflow.clock import SystemClock
from dataflow.engine.draining import DRAINED
from dataflow.engine.job_life import JobState
from dataflow.engine.membership import Life
from dataflow.errors import ConfigError, DrainError
from dataflow.observe.events import NodeChange
from dataflow.runtime.agent import AgentConfig, attach
from dataflow.runtime.client import Client
from dataflow.runtime.foreground import serve_until_signal
from dataflow.runtime.replies import JobStatus
from dataflow.runtime.state_dir import default_state_dir

app = verbs()
_OUT = frozenset({Life.LEFT, Life.GONE})
_node = typer.Typer(rich_markup_mode=None)
app.add_typer(_node, name="node")

LOOK_S = 0.2
"""Seconds between two looks at a node whose job process is to be gone."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a node is in a job.

    Args:
        number: of the node.
        incarnation: how often it had been started before.
    """

    number: int
    incarnation: int

    def ends_by(self, change: NodeChange) -> bool:
        """Whether this is the change with which it has no part in the job any more."""
        return change.life in _OUT and change.node == self.number and change.incarnation >= self.incarnation


@_node.callback(
    invoke_without_command=True,
    epilog=examples(
        "ako node --tasks 1",
        "AKO_CA=ca.pem AKO_TOKEN=... ako node --master 10.0.0.1:7461 --host 10.0.0.2",
        "ako node drain NAME",
    ),
)
def node(
    context: typer.Context,
    master: MasterOption = "",
    name: Annotated[str, typer.Option("--name", help="Unique in the cluster; host name and process if left out.")] = "",
    host: HostOption = AgentConfig.host,
    cores: Annotated[
        int | None,
        typer.Option(
            "--cores",
            min=1,
            metavar="N",
            help="Cores it may use; all if left out. Say so where several nodes share a machine.",
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks",
            min=1,
            metavar="N",
            help="Compute tasks of a job on it; one per core that it may use if left out.",
        ),
    ] = None,
    state_dir: StateDirOption = None,
    insecure: InsecureFlag = False,
    end_jobs_after: Annotated[
        float | None,
        typer.Option(
            "--end-jobs-after",
            min=0.0,
            callback=finite,
            metavar="SECONDS",
            help="End jobs once the master has been away for so long; they never are if left out.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Attach this machine to a master, in the foreground; it runs jobs until Ctrl-C.

    The token is taken from $AKO_TOKEN, or from the master's state directory where that is on this machine; and the
    certificate for a master that speaks TLS from the file $AKO_CA. Once attached, the node keeps trying to reach a
    master that goes away; its jobs go on meanwhile. With --json it prints a line of JSON each time it is attached.
    """
    if context.invoked_subcommand:
        _refuse_options(context, context.invoked_subcommand)
        return
    folder = state_dir or default_state_dir()
    config = AgentConfig(
        name=name or f"{platform.node()}-{os.getpid()}",
        master=master_address(master, folder) if master else "",
        state_dir=folder,
        host=host,
        cores=cores,
        tasks=tasks,
        insecure=insecure,
        end_jobs_after_s=end_jobs_after,
    )
    serve_until_signal(attach(config, announce=print_line) if as_json else attach(config))


@_node.command(
    epilog=examples(
        "ako status",
        "ako node drain worker-3",
    )
)
def drain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node's name, as `ako status` shows it.")],
    master: MasterOption = "",
    state_dir: StateDirOption = None,
    json: JsonFlag = False,
) -> None:
    """Have a node leave its jobs, which go on, so that its machine may be switched off.

    The node gives the others all that it has begun, so nothing is lost, and gets no more jobs until its `ako node` is
    started anew. This waits until it has left; Ctrl-C ends only the waiting. If a job cannot do without the node, that
    is refused before anything happens; and if the node dies before it has left, or the job fails, the exit code is 1.
    A tree that a node has left keeps no more checkpoints.
    """
    with connect(master, state_dir) as client:
        parts = _parts(client, name)
        client.drain(name)
        left = _wait_until_it_has_left(client, name, {**_parts(client, name), **parts}, quiet=json)
    if json:
        print_json({"node": name, "drained": True, "left": left})
    else:
        print(f"node {name} has left its jobs and gets no more: it may be switched off")


def _refuse_options(context: typer.Context, verb: str) -> None:
    """Refuse options that come before the verb which they were meant for.

    Raises:
        ConfigError: there are some.
    """
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        options = ", ".join(each.opts[0] for each in context.command.params if each.name in given)
        what = f"options of `ako node` before {verb}, which knows nothing of them"
        raise ConfigError(what, got=options, fix=f"write what is meant for it behind: ako node {verb} --help")


def _wait_until_it_has_left(client: Client, name: str, parts: Mapping[str, Part], *, quiet: bool) -> str:
    """Return once a node is out of its jobs, as their own records say, and its processes are gone.

    That no agent of this name is attached says nothing: it may not have come back yet to a master that was restarted.

    Returns:
        The job that it had, or an empty text.

    Raises:
        DrainError: it died before it had left, or the job failed.
    """
    clock = SystemClock()
    for job, part in parts.items():
        began_s = clock.now()
        if not quiet:
            print(f"node {name} leaves job {job}, once the others have all that it has begun", flush=True)
        change = _last_change(client, job, name, part)
        if change is None:
            _tell_end(client.job(job), name, quiet=quiet)
            continue
        if change.reason != DRAINED:
            what = f"node {name} died before it had left job {job}; what it had begun may be lost"
            raise DrainError(what, got=change.reason)
        if not quiet:
            print(f"node {name} has left job {job} after {seconds(clock.now() - began_s)}")
    while any(node.name == name and node.drained and node.job for node in client.nodes()):
        clock.sleep(LOOK_S)
    return next(iter(parts), "")


def _tell_end(job: JobStatus, name: str, *, quiet: bool) -> None:
    """Tell how a job ended that a node was to leave, and had not left yet.

    Raises:
        DrainError: it failed.
    """
    if job.state is JobState.FAILED:
        what = f"job {job.id} failed before node {name} had left it, which gets no more jobs"
        raise DrainError(what, got=job.reason)
    if not quiet:
        print(f"job {job.id} is {job.state}, before node {name} had left it")


def _last_change(client: Client, job: str, name: str, part: Part) -> NodeChange | None:
    """The change with which a node has no part in a job any more; None if the job has ended before.

    Raises:
        DrainError: all nodes of the job have died, this one too, and it begins again without it.
    """
    for event in client.watch(job):
        if event.change is not None and part.ends_by(event.change):
            return event.change
        if event.state is JobState.PENDING and not _has_part(now := client.job(job), name) and not now.ended:
            what = f"node {name} died before it had left job {job}, as all others of it, and the job begins again"
            fix = "the node gets no more jobs: its agent may be ended"
            raise DrainError(what, got=now.reason or None, fix=fix)
    return None


def _has_part(job: JobStatus, name: str) -> bool:
    """Whether a node is one of a job's; one that waits for nodes has none, though it may have had some before."""
    return not job.ended and job.state is not JobState.PENDING and name in job.node_names


def _parts(client: Client, name: str) -> dict[str, Part]:
    """What a node is in every job that it has not left, by job id."""
    parts = {}
    for job in client.jobs():
        if _has_part(job, name):
            number = job.node_names.index(name)
            change = next((each for each in job.changes if each.node == number), None)
            if change is None or change.life not in _OUT:
                parts[job.id] = Part(number, 0 if change is None else change.incarnation)
    return parts
