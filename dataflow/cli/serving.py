"""The options of verbs that serve others."""

from __future__ import annotations

from typing import Annotated

import typer

HostOption = Annotated[
    str, typer.Option("--host", help="Address of this machine; loopback but with TLS or --insecure.")
]
InsecureFlag = Annotated[
    bool, typer.Option("--insecure", help="Allow other machines, without encryption: on a trusted network only.")
]
