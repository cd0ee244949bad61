"""Which nodes a job can do without, take back, and take in besides."""

from __future__ import annotations

import json

import pytest
from plan_samples import Receive, Shard, ako, parameter_server
from pydantic import ValidationError

from dataflow.errors import ConfigError
from dataflow.graph.logical import LogicalGraph
from dataflow.plan.job import JobSpec, irreplaceable_nodes, needed_nodes, vacant_nodes


class CatchUp(Receive):
    """Brings a node that has come back to where the others are."""

    catches_up = True


def parallel_server() -> LogicalGraph:
    """Every node has a replica and a part of the whole."""
    return ako().with_state("shard", Shard(), role="worker")


def catching_up(graph: LogicalGraph) -> LogicalGraph:
    return graph.replace("receive", CatchUp())


def test_nodes_with_replicas_are_started_again_only_if_an_operator_of_theirs_catches_up() -> None:
    spec = JobSpec(name="job", graph=ako(), nodes=3)
    assert irreplaceable_nodes(spec) == {0, 1, 2}
    assert needed_nodes(spec) == frozenset()
    assert irreplaceable_nodes(spec.model_copy(update={"graph": catching_up(ako())})) == frozenset()


def test_an_operator_of_another_role_catches_up_for_nobody() -> None:
    graph = parameter_server()
    spec = JobSpec(name="job", graph=graph.replace("serve", CatchUp()), nodes=5)
    workers = {node for node, role in enumerate(spec.plan().nodes) if "worker" in role.roles}
    assert irreplaceable_nodes(spec) == workers


def test_nodes_join_a_job_with_replicas_only_if_an_operator_catches_up() -> None:
    spec = JobSpec(name="job", graph=ako(), nodes=2, max_nodes=3)
    with pytest.raises(ConfigError, match=r"no node can join 'ako' while it runs: .*newcomer's replica.*catches_up"):
        vacant_nodes(spec)
    assert vacant_nodes(spec.model_copy(update={"graph": catching_up(ako())})) == {2}


def test_nobody_is_told_of_replicas_where_it_is_parts_of_a_whole_that_let_no_node_join() -> None:
    spec = JobSpec(name="job", graph=parallel_server(), nodes=2, max_nodes=3)
    with pytest.raises(ConfigError, match="each of its nodes holds a part of the whole"):
        vacant_nodes(spec)


def test_job_that_was_kept_before_graphs_told_who_catches_up_is_as_it_was() -> None:
    kept = json.loads(JobSpec(name="job", graph=ako(), nodes=2, max_nodes=3).model_dump_json())
    for operator in kept["graph"]["operators"]:
        del operator["catches_up"]
    spec = JobSpec.model_validate_json(json.dumps(kept))
    assert irreplaceable_nodes(spec) == frozenset()
    assert vacant_nodes(spec) == {2}


def test_nodes_that_a_job_cannot_do_without_are_started_again_whatever_else_they_hold() -> None:
    """Each is a worker and a server: its part of the model comes from a checkpoint, or the job could not go on."""
    graph = parallel_server()
    spec = JobSpec(name="job", graph=graph, nodes=3)
    assert needed_nodes(spec) == {0, 1, 2}
    assert irreplaceable_nodes(spec) == frozenset()


@pytest.mark.parametrize("name", ["x" * 201, "job\x1b[31m", "job\nFINISHED"])
def test_name_that_is_long_or_cannot_be_printed_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="a job's name has at most 200 characters, which can be printed"):
        JobSpec(name=name, graph=ako(), nodes=1)
    assert JobSpec(name="größer als 1", graph=ako(), nodes=1).name == "größer als 1"
