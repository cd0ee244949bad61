"""``ako node`` and ``ako node drain``. Imports no NumPy."""

from __future__ import annotations

import os
import platform
from typing import Annotated

import typer

from dataflow.cli.common import (
    JsonFlag,
    MasterOption,
    StateDirOption,
    connect,
    examples,
    master_address,
    print_json,
    print_line,
    seconds,
    verbs,
)
from dataflow.cli.serving import HostOption, InsecureFlag
from dataflow.clock import SystemClock
from dataflow.errors import MasterError
from dataflow.runtime.agent import AgentConfig, attach
from dataflow.runtime.client import Client, NodeStatus
from dataflow.runtime.foreground import serve_until_signal
from dataflow.runtime.state_dir import default_state_dir

app = verbs()
_node = typer.Typer(rich_markup_mode=None)
app.add_typer(_node, name="node")

LOOK_S = 0.2
"""Seconds between two looks at a node that is to leave its jobs."""


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
        int | None, typer.Option("--cores", min=1, metavar="N", help="Cores it may use; all if left out.")
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option("--tasks", min=1, metavar="N", help="Compute tasks of a job on it; one per core if left out."),
    ] = None,
    state_dir: StateDirOption = None,
    insecure: InsecureFlag = False,
    end_jobs_after: Annotated[
        float | None,
        typer.Option(
            "--end-jobs-after",
            min=0.0,
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
    is refused before anything happens.
    """
    with connect(master, state_dir) as client:
        client.drain(name)
        left = _wait_until_it_has_left(client, name, quiet=json)
    if json:
        print_json({"node": name, "drained": True, "left": left})
    else:
        print(f"node {name} has left its jobs and gets no more: it may be switched off")


def _wait_until_it_has_left(client: Client, name: str, *, quiet: bool) -> str:
    """Return once a node has no job; the job that it had, or an empty text.

    Raises:
        MasterError: its agent was started anew meanwhile, and it takes part again.
    """
    clock, job = SystemClock(), ""
    began_s = clock.now()
    while (found := _find(client.nodes(), name)) is not None and found.job:
        if not found.drained:
            fix = f"drain it again: ako node drain {name}"
            raise MasterError(what="the node was started anew before it had left its jobs", got=name, fix=fix)
        if not job and not quiet:
            print(f"node {name} leaves job {found.job}, once the others have all that it has begun", flush=True)
        job = found.job
        clock.sleep(LOOK_S)
    if job and not quiet:
        print(f"node {name} has left job {job} after {seconds(clock.now() - began_s)}")
    return job


def _find(nodes: list[NodeStatus], name: str) -> NodeStatus | None:
    """The node of a name; None if none is attached, and so in no job."""
    return next((node for node in nodes if node.name == name), None)
