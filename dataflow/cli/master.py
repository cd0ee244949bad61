"""``ako master``."""

from __future__ import annotations

from typing import Annotated

import typer

from dataflow.cli.common import JsonFlag, StateDirOption, examples, print_line, verbs
from dataflow.cli.serving import HostOption, InsecureFlag
from dataflow.errors import ConfigError
from dataflow.runtime.foreground import serve_until_signal
from dataflow.runtime.master import MasterConfig, serve
from dataflow.runtime.state_dir import default_state_dir

app = verbs()


@app.command(
    epilog=examples(
        "ako master",
        "ako master --metrics-port 9464",
        "AKO_TOKEN=$(ako token) ako node --master 127.0.0.1:7461",
    )
)
def master(
    host: HostOption = MasterConfig.host,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port to listen on; 0: any.")
    ] = MasterConfig.port,
    state_dir: StateDirOption = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Tell Prometheus about running jobs, at http://127.0.0.1:PORT/metrics; 0: any.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Address for that; loopback unless --insecure.")
    ] = "",
    insecure: InsecureFlag = False,
    encrypt_loopback: Annotated[
        bool,
        typer.Option(
            "--encrypt-loopback", help="With TLS: encrypt between nodes on this machine's loopback addresses, too."
        ),
    ] = False,
    keep_jobs: Annotated[
        int | None,
        typer.Option(
            "--keep-jobs",
            min=1,
            metavar="N",
            help="Keep the N jobs that ended last, and remove older ones with all that they made; all if left out.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a master in the foreground: it queues jobs and places them on nodes.

    Its state directory keeps jobs, results and the tokens that nodes and clients need; `ako token --tls` gives it
    certificates. Stop it with Ctrl-C: jobs go on, and are there when it is started again. With --json it prints where
    it listens as a line of JSON.
    """
    if metrics_host and metrics_port is None:
        what = "metrics have an address and no port"
        raise ConfigError(what, got=metrics_host, fix="add --metrics-port 9464")
    config = MasterConfig(
        host,
        port,
        state_dir or default_state_dir(),
        insecure,
        metrics_host=metrics_host or MasterConfig.metrics_host,
        metrics_port=metrics_port,
        encrypt_loopback=encrypt_loopback,
        keep_jobs=keep_jobs,
    )
    serve_until_signal(serve(config, announce=print_line) if as_json else serve(config))
