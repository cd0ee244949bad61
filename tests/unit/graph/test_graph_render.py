from __future__ import annotations

from graph_samples import GreyScale, exchange, pipeline

from dataflow.graph.logical import LogicalGraph
from dataflow.graph.render import as_dot, as_mermaid, as_text
from dataflow.graph.routes import Route

EXCHANGE_TEXT = """\
pipeline

worker x all
  [source] -> blur     compute
  [blur] -> compute    compute
  [compute] -> send    compute   reads & writes model (partial)
  [send]               network
  [receive] -> apply   network
  [apply]              compute   writes model (partial)
  state model   partial   written by compute, apply; read by compute

streams
  send.sent ===> receive.arrived   one-to-all   worker -> worker
"""

EXCHANGE_MERMAID = """\
flowchart LR
  subgraph r0["worker x all"]
    t0["source<br/>compute pool"]
    t1["blur<br/>compute pool"]
    t2["compute<br/>compute pool"]
    t3["send<br/>network pool"]
    t4["receive<br/>network pool"]
    t5["apply<br/>compute pool"]
    e0[("model<br/>partial")]
  end
  t0 -->|"Batch"| t1
  t1 -->|"Batch"| t2
  t2 -->|"Gradient"| t3
  t4 -->|"Gradient"| t5
  t3 ==>|"one-to-all"| t4
  t2 <-.-> e0
  t5 -.-> e0
"""

PIPELINE_DOT = """\
digraph "pipeline" {
  rankdir=LR;
  node [shape=box];
  subgraph cluster_0 {
    label="worker x all";
    t0 [label="source\\ncompute pool"];
    t1 [label="blur\\ncompute pool"];
    t2 [label="compute\\ncompute pool"];
    e0 [label="model\\npartial", shape=cylinder];
  }
  t0 -> t1 [label="Batch"];
  t1 -> t2 [label="Batch"];
  t2 -> e0 [style=dotted, dir=both];
}
"""


def test_text_of_an_exchange_is_pinned() -> None:
    assert as_text(exchange()) == EXCHANGE_TEXT


def test_mermaid_of_an_exchange_is_pinned() -> None:
    assert as_mermaid(exchange()) == EXCHANGE_MERMAID


def test_dot_of_a_pipeline_is_pinned() -> None:
    assert as_dot(pipeline()) == PIPELINE_DOT


def test_dot_stream_is_thick() -> None:
    assert '  t3 -> t4 [label="one-to-all", penwidth=3];\n' in as_dot(exchange())


def test_text_inserted_operator_stands_where_data_passes_it() -> None:
    lines = as_text(pipeline().insert_after("source", GreyScale())).splitlines()
    assert [line.split("]")[0].strip(" [") for line in lines if "[" in line] == [
        "source",
        "grey_scale",
        "blur",
        "compute",
    ]


def test_text_of_a_local_cycle_keeps_the_graphs_order() -> None:
    lines = as_text(pipeline().connect("blur", "blur")).splitlines()
    assert [line.split("]")[0].strip(" [") for line in lines if "[" in line] == ["source", "blur", "compute"]


def test_text_stream_names_key_and_loopback() -> None:
    graph = exchange()
    edges = tuple(
        edge.model_copy(update={"route": Route.BY_OWNER, "key": "part", "loopback": True}) if edge.route else edge
        for edge in graph.edges
    )
    text = as_text(graph.model_copy(update={"edges": edges}))
    assert text.endswith("\n  send.sent ===> receive.arrived   by-owner (part) + self   worker -> worker\n")


def test_text_of_an_empty_role_is_its_heading() -> None:
    assert as_text(LogicalGraph(name="empty").with_role("worker", "rest")) == "empty\n\nworker x rest\n"


def test_labels_special_characters_are_escaped() -> None:
    graph = pipeline()
    odd = graph.operators[1].model_copy(update={"id": 'a"<b>&#`\n\\'})
    graph = graph.model_copy(update={"operators": (odd,), "edges": (), "elements": ()})
    assert '    t0["a#quot;#lt;b#gt;#amp;#35;#96; \\<br/>compute pool"]\n' in as_mermaid(graph)
    assert '    t0 [label="a\\"<b>&#` \\\\\\ncompute pool"];\n' in as_dot(graph)
