"""``ako resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from ako_jobs.resume import resumed
from dataflow.cli.common import (
    IdArgument,
    JsonFlag,
    MasterOption,
    SettingsArgument,
    StateDirOption,
    connect,
    examples,
    note,
    parse_settings,
    print_json,
    verbs,
)
from dataflow.plan.job import JobSpec, Resume

app = verbs()


@app.command(
    epilog=examples(
        "ako resume 3f2a",
        "ako resume 3f2a --from 1200",
        "ako resume 3f2a --nodes 3",
        "ako resume 3f2a epochs=20 lr=0.01",
    )
)
def resume(
    job: IdArgument,
    settings: SettingsArgument = None,
    number: Annotated[
        int | None, typer.Option("--from", min=0, metavar="NUMBER", help="That checkpoint, not the newest.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", min=1, metavar="N", help="How many nodes; as before if left out.")
    ] = None,
    code: Annotated[
        str, typer.Option("--job", metavar="JOB", help="The job's own code, if settings change: my_job.py.")
    ] = "",
    master: MasterOption = "",
    state_dir: StateDirOption = None,
    json: JsonFlag = False,
) -> None:
    """Go on from the newest whole checkpoint of a job that has ended, as a new job, and print its id.

    A checkpoint that is broken is left out, and the one before is taken; a warning names it. Settings may change where
    the state stays what it is: epochs, lr, target and the like.
    """
    with connect(master, state_dir) as client:
        before = client.job(job)
        spec = JobSpec.model_validate_json(client.spec_json(before.id))
        wanted = Resume(job=before.id, number=number)
        prepared = resumed(spec, wanted, nodes=nodes, settings=parse_settings(settings), job=code)
        submitted = client.submit(prepared.spec, prepared.bundle)
        spec = JobSpec.model_validate_json(client.spec_json(submitted))
    found = spec.resume.number if spec.resume else None
    if json:
        print_json(
            {
                "job": submitted,
                "name": spec.name,
                "nodes": spec.nodes,
                "resumed": before.id,
                "checkpoint": found,
                "warnings": spec.warnings,
            }
        )
        return
    for warning in spec.warnings:
        note(warning)
    note(f"goes on from checkpoint {found} of {before.id}")
    print(submitted)
