"""``ako node``. Imports no NumPy."""

from __future__ import annotations

import os
import platform
from typing import Annotated

import typer

from dataflow.cli.common import (
    JsonFlag,
    MasterOption,
    StateDirOption,
    examples,
    master_address,
    print_line,
    verbs,
)
from dataflow.cli.serving import HostOption, InsecureFlag
from dataflow.runtime.agent import AgentConfig, attach
from dataflow.runtime.foreground import serve_until_signal
from dataflow.runtime.state_dir import default_state_dir

app = verbs()


@app.command(
    epilog=examples(
        "ako node --tasks 1",
        "AKO_CA=ca.pem AKO_TOKEN=... ako node --master 10.0.0.1:7461 --host 10.0.0.2",
    )
)
def node(
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
