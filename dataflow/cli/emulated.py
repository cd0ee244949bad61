"""The option that runs a job in the lab, for every verb that runs jobs."""

from __future__ import annotations

from typing import Annotated

import typer

LabFlag = Annotated[
    bool, typer.Option("--lab", help="Run it in the lab that `ako lab up` has made: node i on its host i.")
]
