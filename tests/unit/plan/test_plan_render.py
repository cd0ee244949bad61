from __future__ import annotations

from collections.abc import Callable

import pytest
from plan_samples import ako, all_to_all, parameter_server

from dataflow.graph.checks import problems
from dataflow.graph.logical import LogicalGraph
from dataflow.plan.compile import compile_graph
from dataflow.plan.render import abbreviate, plan_dot, plan_mermaid, plan_text

AKO = """\
ako on 8 nodes

worker x 8 (node-0 .. node-7), 1 compute task, 1 network task each
  [source] -> compute                network
  [compute] -> accumulate            compute   reads & writes model (partial); reads clocks (local)
  [accumulate + partition] -> send   compute
  [send]                             network
  [receive] -> apply                 network
  [apply]                            compute   writes model (partial), clocks (local)
  state model    partial   written by compute, apply; read by compute
  state clocks   local     written by apply; read by compute

streams
  send.fragments ===> receive.fragments   by-destination   worker -> worker   56 streams
"""

ALL_TO_ALL = """\
all-to-all on 2 nodes

worker x 2 (node-0, node-1), 2 compute tasks, 1 network task each
  [source] -> compute   network
  [compute] -> send     compute   reads & writes model (partial); reads clocks (local)
  [send]                network
  [receive] -> apply    network
  [apply]               compute   writes model (partial), clocks (local)
  state model    partial   written by compute, apply; read by compute
  state clocks   local     written by apply; read by compute

streams
  send.fragments ===> receive.fragments   by-destination   worker -> worker   2 streams
"""

PARAMETER_SERVER = """\
parameter-server on 8 nodes

worker x 6 (node-0 .. node-5), 1 compute task, 1 network task each
  [source] -> compute      network
  [compute] -> partition   compute   reads & writes model (partial); reads clocks (local)
  [partition] -> send      compute
  [send]                   network
  [receive] -> apply       network
  [apply]                  compute   writes model (partial), clocks (local)
  state model    partial   written by compute, apply; read by compute
  state clocks   local     written by apply; read by compute

server x 2 (node-6, node-7), 1 compute task, 1 network task each
  [serve] -> update   network
  [update] -> reply   compute   writes shard (partitioned), ticks (local)
  [reply]             network
  state shard   partitioned   written by update
  state ticks   local         written by update

streams
  send.fragments ===> serve.fragments      by-owner (part)   worker -> server   12 streams
  reply.fragments ===> receive.fragments   one-to-all        server -> worker   12 streams
"""

ALL_TO_ALL_MERMAID = """\
flowchart LR
  subgraph r0["worker x 3<br/>node-0 .. node-2"]
    t0["source<br/>network pool"]
    t1["compute<br/>compute pool"]
    t2["send<br/>network pool"]
    t3["receive<br/>network pool"]
    t4["apply<br/>compute pool"]
    e0[("model<br/>partial")]
    e1[("clocks<br/>local")]
  end
  t0 -->|"Batch"| t1
  t1 -->|"Gradient"| t2
  t3 -->|"Gradient"| t4
  t2 ==>|"by-destination<br/>6 streams"| t3
  t1 <-.-> e0
  e1 -.-> t1
  t4 -.-> e0
  t4 -.-> e1
"""


@pytest.mark.parametrize("build", [ako, all_to_all, parameter_server])
def test_samples_pass_the_checks(build: Callable[[], LogicalGraph]) -> None:
    assert problems(build()) == ()


def test_plan_text_of_ako_is_pinned() -> None:
    assert plan_text(compile_graph(ako(), 8)) == AKO


def test_plan_text_of_all_to_all_is_pinned() -> None:
    assert plan_text(compile_graph(all_to_all(), 2, compute_tasks=2)) == ALL_TO_ALL


def test_plan_text_of_parameter_server_is_pinned() -> None:
    assert plan_text(compile_graph(parameter_server(), 8)) == PARAMETER_SERVER


def test_plan_mermaid_is_pinned() -> None:
    assert plan_mermaid(compile_graph(all_to_all(), 3)) == ALL_TO_ALL_MERMAID


def test_plan_dot_counts_streams_and_names_nodes() -> None:
    lines = plan_dot(compile_graph(all_to_all(), 3)).splitlines()
    assert lines[0] == 'digraph "all-to-all on 3 nodes" {'
    assert '    label="worker x 3\\nnode-0 .. node-2";' in lines
    assert '  t2 -> t3 [label="by-destination\\n6 streams", penwidth=3];' in lines


def test_plan_text_nodes_that_differ_show_the_range() -> None:
    plan = compile_graph(all_to_all(), 2)
    nodes = (plan.nodes[0], plan.nodes[1].model_copy(update={"compute_tasks": 4}))
    text = plan_text(plan.model_copy(update={"nodes": nodes}))
    assert "worker x 2 (node-0, node-1), 1 to 4 compute tasks, 1 network task each\n" in text


def test_plan_text_single_node_has_no_streams() -> None:
    text = plan_text(compile_graph(all_to_all(), 1))
    assert text.startswith("all-to-all on 1 node\n")
    assert text.endswith("worker -> worker   0 streams\n")


@pytest.mark.parametrize("build", [ako, all_to_all, parameter_server])
def test_plan_text_counts_the_streams_of_the_plan(build: Callable[[], LogicalGraph]) -> None:
    plan = compile_graph(build(), 5)
    counted = [int(line.split()[-2]) for line in plan_text(plan).splitlines() if line.endswith(" streams")]
    assert sum(counted) == sum(1 for _ in plan.streams())


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ((), ""),
        (("a",), "a"),
        (("node-0", "node-1"), "node-0, node-1"),
        (("node-0", "node-1", "node-2"), "node-0 .. node-2"),
        (("n08", "n09", "n10", "x"), "n08 .. n10, x"),
        (("n9", "n10", "n11", "n13"), "n9 .. n11, n13"),
        (("a1", "b2", "c3"), "a1, b2, c3"),
        (tuple("abcdefgh"), "a, b, c, d, e, f, g, h"),
        (tuple("abcdefghi"), "a, b, c, d, e, f, g, ... (9 names)"),
    ],
)
def test_abbreviate_runs_are_shortened(names: tuple[str, ...], short: str) -> None:
    assert abbreviate(names) == short
