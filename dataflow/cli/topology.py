"""``ako topology``: give the workers of a running tree job other neighbours."""

from __future__ import annotations

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
    verbs,
)
from dataflow.engine.job_life import JobState
from dataflow.errors import ConfigError, JobFailedError, MasterError
from dataflow.observe.events import AdjustmentStep
from dataflow.plain import plain
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import JobSpec
from dataflow.runtime.client import Client
from dataflow.state import StateKind
from operators.topology import Topology, parse_topology

app = verbs()


@app.command(
    "topology",
    epilog=examples(
        "ako topology 3f2a --to star",
        "ako topology 3f2a --to 'tree(3)'",
        "ako topology 3f2a --to edges.txt",
    ),
)
def topology(
    job: IdArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="chain|star|twin_masters|tree(D)|FILE",
            help="The tree as it is to be; a file has an edge such as 0 1 on each line.",
        ),
    ],
    master: MasterOption = "",
    state_dir: StateDirOption = None,
    json: JsonFlag = False,
) -> None:
    """Change the tree of a running job while all its workers go on, and wait until that is settled.

    Only the nodes of the part that changes are touched: until their new neighbours have spoken they train by
    themselves. Exit code 0: the tree is changed; 2: it is as it was, and why; 1: the job ended meanwhile.
    """
    wanted = parse_topology(to)
    with connect(master, state_dir) as client:
        found = client.job(job)
        spec = JobSpec.model_validate_json(client.spec_json(found.id))
        require_tree_job(spec, wanted)
        if found.state is not JobState.RUNNING:
            raise MasterError(what="only the tree of a job that runs can be changed", got=found.state, where=found.id)
        told = _outcome(client, found.id, client.adjust(found.id, wanted.model_dump_json()))
    if json:
        print_json({"job": found.id, "to": to, **plain(told)})
    if told.stage == "dropped":
        raise MasterError(what=f"the tree of the job is as it was: {told.reason}", where=found.id)
    if not json:
        print(f"{found.id}: {told}")


def require_tree_job(spec: JobSpec, wanted: Topology) -> None:
    """Nothing, if the nodes of a job share over a tree, and this is one of so many nodes.

    Raises:
        ConfigError: they do not, or it is not; the message names a cycle.
    """
    shared = [element for element in spec.graph.elements if element.kind is StateKind.SUMMED]
    if not shared:
        what = "the nodes of this job share no parameters over a tree, so it has no topology to change"
        raise ConfigError(what, got=spec.name, fix="ako run tree makes one that has")
    for element in shared:
        wanted.of(len(compile_graph(spec.graph, spec.nodes).members()[element.role]))


def _outcome(client: Client, job: str, number: int) -> AdjustmentStep:
    """The last step of a change.

    Raises:
        JobFailedError: the job has ended before.
    """
    for event in client.watch(job):
        told = event.adjustment
        if told is not None and told.number == number and told.stage in ("settled", "dropped"):
            return told
    raise JobFailedError(what="the job has ended before its tree was changed", where=job)
