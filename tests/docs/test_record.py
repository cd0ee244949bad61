"""The table of the record's keys in docs/cli.md."""

from __future__ import annotations

import re
from typing import Any

from dataflow.graph.logical import LogicalGraph
from dataflow.observe.events import AdjustmentStep, JobEvent, NodeChange
from dataflow.observe.record import make_record
from dataflow.observe.series import Point
from dataflow.plan.job import JobSpec
from dataflow.reports import NodeStatistics
from tests.docs.pages import ROOT

EVENTS = (
    JobEvent(0, 1.0, 1.0, node=1, change=NodeChange(1, "dead", 0, "killed", 1.0)),
    JobEvent(1, 2.0, 2.0, adjustment=AdjustmentStep(1, "asked")),
    JobEvent(2, 3.0, 3.0, master_away=(1.0, 2.0)),
)


def keys_of(value: Any) -> set[str]:
    """The keys of an object, or of those in a list."""
    return set(value) if isinstance(value, dict) else set().union(*map(keys_of, value))


def test_table_has_every_key_of_the_record_and_of_what_is_in_it() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    rows = page.partition("The record of a run:\n")[2].strip().partition("\n\n")[0].splitlines()[2:]
    said = {row.split("|")[1].strip(): set(re.findall(r"`(\w+)`", row.split("|")[2])) for row in rows}
    record = make_record(
        JobSpec(name="job", graph=LogicalGraph(name="job"), nodes=2),
        EVENTS,
        [NodeStatistics(0, sent_nbytes={1: 8})],
        {},
        series=[Point(1.0, 1, 0.5, 0.0, 8, 0, 0.0, 0, 0.0)],
    )
    named = {key for keys in said for key in re.findall(r"`(\w+)`", keys)}
    assert named == record.keys()
    for part in ("totals", "nodes", "links", "changes", "adjustments", "master_away", "series"):
        assert said[f"`{part}`"] >= keys_of(record[part]), part
