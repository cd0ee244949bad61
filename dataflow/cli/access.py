"""``ako token``."""

from __future__ import annotations

from typing import Annotated

import typer

from dataflow.cli.common import JsonFlag, StateDirOption, examples, print_json, verbs
from dataflow.clock import SystemClock
from dataflow.errors import AuthError
from dataflow.runtime.auth import Role, read_token
from dataflow.runtime.certificates import make_authority
from dataflow.runtime.state_dir import default_state_dir

app = verbs()


@app.command(
    epilog=examples(
        "AKO_TOKEN=$(ako token --role read) ako status --master 127.0.0.1:7461",
        "ako token --tls",
    )
)
def token(
    role: Annotated[Role, typer.Option("--role", help="Whose: what it allows.")] = Role.ADMIN,
    tls: Annotated[
        bool, typer.Option("--tls", help="Make certificates, if there are none, and print where the authority's is.")
    ] = False,
    state_dir: StateDirOption = None,
    json: JsonFlag = False,
) -> None:
    """Print a token of the master whose state directory is on this machine, or give the master certificates.

    With the token of the role read one sees everything, with that of submit one submits and cancels jobs, too; node is
    for agents, and admin for all of that. With --tls, the master speaks TLS from its next start on: give the file that
    is printed to clients and nodes on other machines, as $AKO_CA.
    """
    folder = state_dir or default_state_dir()
    if tls:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = str(make_authority(folder, SystemClock().wall()))
        except OSError as error:
            what = f"cannot keep the cluster's certificates there: {error.strerror}"
            raise AuthError(what, where=str(folder), fix="name another --state-dir") from error
    else:
        found = read_token(folder, role)
    if json:
        print_json({"ca" if tls else "token": found})
    else:
        print(found)
