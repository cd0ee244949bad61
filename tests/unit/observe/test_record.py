from __future__ import annotations

import json
import math

from dataflow.graph.logical import LogicalGraph
from dataflow.observe.events import AdjustmentStep, JobEvent, NodeChange
from dataflow.observe.record import installed_versions, make_record
from dataflow.plan.job import JobSpec, StopRules
from dataflow.reports import LinkStatistics, NodeStatistics, OperatorReport, ProcessorTimes, SampleStatistics

SPEC = JobSpec(
    name="ako",
    graph=LogicalGraph(name="ako"),
    nodes=2,
    seed=7,
    stop=StopRules(time_s=3.0),
    config={"lr": 0.1},
    warnings=("small batch",),
)
EVENTS = [
    JobEvent(0, 100.0, 0.0, state="RUNNING"),
    JobEvent(1, 101.0, 1.0, node=0, report=OperatorReport("validate.results", {"accuracy": 0.5, "loss": math.nan})),
    JobEvent(2, 102.5, 2.5, node=1, report=OperatorReport("validate.results", {"accuracy": 0.75, "images": 256})),
    JobEvent(3, 103.0, 3.0, node=1, change=NodeChange(1, "alive", 2, "", 103.0)),
    JobEvent(4, 103.0, 3.0, adjustment=AdjustmentStep(2, "settled", "", (0, 1), 0.5, 0.25)),
    JobEvent(3, 103.0, 3.0, warning="checkpoint 10 cannot be kept"),
    JobEvent(4, 104.0, 4.0, state="FINISHED", stopped_by="time"),
]
STATISTICS = [
    NodeStatistics(
        node=1,
        steps=30,
        tasks=40,
        busy_s={"compute": 2.0, "network": 0.5},
        waiting_s=0.25,
        sent_nbytes={0: 70},
        received_nbytes={0: 50},
        samples={"compute.staleness": SampleStatistics(2, 6.0, 5.0, 1.0)},
        running_s=4.0,
        compute_tasks=2,
        processor=ProcessorTimes(3.0, 1.75, 0.5),
        links_busy_s=0.5,
        links={0: LinkStatistics(75, 3, 0.5, 0.75)},
        incarnation=2,
    ),
    NodeStatistics(
        node=0,
        steps=10,
        tasks=12,
        busy_s={"compute": 1.0},
        sent_nbytes={1: 60},
        samples={
            "compute.staleness": SampleStatistics(6, 6.0, 2.0, 1.0),
            "load.lag": SampleStatistics(4, 8.0, 3.0, 1.0),
            "load.gap": SampleStatistics(2, 1.0, 0.75, 0.25),
        },
        running_s=4.0,
    ),
]
CODED = [
    NodeStatistics(0, samples={"send.compression_ratio": SampleStatistics(2, 500.0, 300.0, 200.0)}),
    NodeStatistics(1, samples={"send.compression_ratio": SampleStatistics(1, 100.0, 100.0, 100.0)}),
    NodeStatistics(2),
]


def test_record_holds_incarnations_that_died_and_counts_them_in_totals() -> None:
    died = [NodeStatistics(1, steps=7, tasks=8, sent_nbytes={0: 5}, incarnation=each) for each in (1, 0)]
    last = [NodeStatistics(0, steps=20), NodeStatistics(1, steps=3, incarnation=2)]
    record = make_record(SPEC, EVENTS, last, {}, ["left", "right"], earlier=died)
    nodes, earlier, totals = record["nodes"], record["earlier"], record["totals"]
    assert isinstance(nodes, list)
    assert isinstance(earlier, list)
    assert isinstance(totals, dict)
    assert [(each["node"], each["incarnation"], each["steps"]) for each in nodes] == [(0, 0, 20), (1, 2, 3)]
    assert [(each["name"], each["incarnation"], each["steps"]) for each in earlier] == [
        ("right", 0, 7),
        ("right", 1, 7),
    ]
    assert (totals["gradients"], totals["tasks"], totals["sent_nbytes"]) == (37, 16, 10)


def test_record_adds_up_what_all_incarnations_of_two_nodes_sent_each_other() -> None:
    link = LinkStatistics(nbytes=40, messages=2, busy_s=0.5, delay_s=0.25)
    died = [NodeStatistics(1, sent_nbytes={0: 50}, links={0: link}), NodeStatistics(1, sent_nbytes={2: 7})]
    last = [
        NodeStatistics(0, received_nbytes={1: 51}),
        NodeStatistics(1, sent_nbytes={0: 6}, links={0: LinkStatistics(6, 1, 0.5, 0.5)}, incarnation=1),
    ]
    links = make_record(SPEC, EVENTS, last, {}, earlier=died)["links"]
    assert links == [
        {
            **{"source": 1, "target": 0, "sent_nbytes": 56, "received_nbytes": 51},
            **{"delivered_nbytes": 46, "busy_s": 1.0, "goodput_nbytes_s": 46.0, "delay_s": 0.25},
        },
        {
            **{"source": 1, "target": 2, "sent_nbytes": 7, "received_nbytes": 0},
            **dict.fromkeys(("delivered_nbytes", "busy_s", "goodput_nbytes_s", "delay_s")),
        },
    ]


def test_record_calls_an_incarnation_what_its_node_was_called_then() -> None:
    changes = [
        NodeChange(1, "left", 0, "it was drained", 101.0, "right"),
        NodeChange(1, "joining", 1, "newcomer has come in the place of right", 102.0, "newcomer"),
        NodeChange(1, "alive", 1, "", 103.0, "newcomer"),
    ]
    events = [JobEvent(index, 101.0, 1.0, node=1, change=change) for index, change in enumerate(changes)]
    last, died = [NodeStatistics(0), NodeStatistics(1, incarnation=1)], [NodeStatistics(1)]
    record = make_record(SPEC, events, last, {}, ["left", "newcomer"], earlier=died)
    nodes, earlier = record["nodes"], record["earlier"]
    assert isinstance(nodes, list)
    assert isinstance(earlier, list)
    assert [each["name"] for each in nodes] == ["left", "newcomer"]
    assert [each["name"] for each in earlier] == ["right"]


def test_record_totals_hold_the_mean_of_the_nodes_newest_compression_ratios() -> None:
    totals = make_record(SPEC, EVENTS, CODED, {})["totals"]
    assert isinstance(totals, dict)
    assert totals["compression_ratio"] == 150.0


def test_record_holds_what_was_asked_what_came_out_and_what_it_cost() -> None:
    record = make_record(SPEC, EVENTS, STATISTICS, {"python": "3"}, ["left", "right"])
    assert record == {
        "format": 1,
        "name": "ako",
        "seed": 7,
        "config": {"lr": 0.1},
        "stop": SPEC.stop.model_dump(mode="json"),
        "warnings": ["small batch", "checkpoint 10 cannot be kept"],
        "versions": {"python": "3"},
        "state": "FINISHED",
        "reason": "",
        "stopped_by": "time",
        "last_lines": [],
        "run_s": 4.0,
        "changes": [{"time_s": 3.0, "node": 1, "life": "alive", "incarnation": 2, "reason": ""}],
        "adjustments": [
            {
                "time_s": 3.0,
                "number": 2,
                "stage": "settled",
                "reason": "",
                "touched": [0, 1],
                "inside_s": 0.5,
                "outside_s": 0.25,
            }
        ],
        "reports": [
            {"accuracy": 0.5, "loss": None, "time_s": 1.0, "node": 0, "port": "validate.results"},
            {"accuracy": 0.75, "images": 256, "time_s": 2.5, "node": 1, "port": "validate.results"},
        ],
        "totals": {
            "images": 256,
            "gradients": 40,
            "tasks": 52,
            "sent_nbytes": 130,
            "received_nbytes": 50,
            "staleness_max": 5.0,
            "staleness_mean": 1.5,
            "compression_ratio": None,
            "poisoned": 0,
            "lag_mean": 2.0,
            "gap_mean": 0.5,
            "normalised_gap_mean": None,
        },
        "nodes": [
            {
                "node": 0,
                "incarnation": 0,
                "name": "left",
                "steps": 10,
                "tasks": 12,
                "running_s": 4.0,
                "compute_tasks": 1,
                "computing_s": 1.0,
                "waiting_s": 0.0,
                "idle_s": 3.0,
                "sending_s": 0.0,
                "cpu_s": None,
                "compute_cpu_s": None,
                "exchange_cpu_s": None,
                "cpu_utilisation": None,
                "links_busy_s": None,
                "sent_nbytes": 60,
                "received_nbytes": 0,
                "samples": {
                    "compute.staleness": {"count": 6, "mean": 1.0, "maximum": 2.0, "last": 1.0},
                    "load.gap": {"count": 2, "mean": 0.5, "maximum": 0.75, "last": 0.25},
                    "load.lag": {"count": 4, "mean": 2.0, "maximum": 3.0, "last": 1.0},
                },
            },
            {
                "node": 1,
                "incarnation": 2,
                "name": "right",
                "steps": 30,
                "tasks": 40,
                "running_s": 4.0,
                "compute_tasks": 2,
                "computing_s": 2.0,
                "waiting_s": 0.25,
                "idle_s": 2.75,
                "sending_s": 0.5,
                "cpu_s": 3.0,
                "compute_cpu_s": 1.75,
                "exchange_cpu_s": 0.5,
                "cpu_utilisation": 0.75,
                "links_busy_s": 0.5,
                "sent_nbytes": 70,
                "received_nbytes": 50,
                "samples": {"compute.staleness": {"count": 2, "mean": 3.0, "maximum": 5.0, "last": 1.0}},
            },
        ],
        "earlier": [],
        "links": [
            {
                "source": 0,
                "target": 1,
                "sent_nbytes": 60,
                "received_nbytes": 50,
                "delivered_nbytes": None,
                "busy_s": None,
                "goodput_nbytes_s": None,
                "delay_s": None,
            },
            {
                "source": 1,
                "target": 0,
                "sent_nbytes": 70,
                "received_nbytes": 0,
                "delivered_nbytes": 75,
                "busy_s": 0.5,
                "goodput_nbytes_s": 150.0,
                "delay_s": 0.25,
            },
        ],
        "master_away": [],
        "series": [],
        "simulation": None,
    }
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_record_of_a_job_without_events_or_samples_has_no_means() -> None:
    record = make_record(SPEC, [], [NodeStatistics(0)], {})
    assert (record["state"], record["run_s"], record["reports"], record["links"]) == ("", 0.0, [], [])
    totals = record["totals"]
    assert isinstance(totals, dict)
    assert (totals["images"], totals["staleness_max"], totals["staleness_mean"]) == (None, None, None)


def test_record_of_a_link_on_which_nothing_arrived_has_no_goodput() -> None:
    statistics = NodeStatistics(0, sent_nbytes={1: 9}, links={1: LinkStatistics(busy_s=2.0)})
    record = make_record(SPEC, [], [statistics], {})
    assert record["links"] == [
        {
            "source": 0,
            "target": 1,
            "sent_nbytes": 9,
            "received_nbytes": 0,
            "delivered_nbytes": 0,
            "busy_s": 2.0,
            "goodput_nbytes_s": None,
            "delay_s": None,
        }
    ]


def test_installed_versions_name_what_results_depend_on() -> None:
    assert set(installed_versions()) == {"python", "ako-dataflow", "numpy", "numba", "grpcio"}
