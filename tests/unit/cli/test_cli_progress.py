from __future__ import annotations

import io

import pytest
from rich.console import Console

from dataflow.cli.common import seconds
from dataflow.cli.progress import Progress
from dataflow.observe.events import JobEvent, NodeChange
from dataflow.reports import NodeStatistics, OperatorReport, SampleStatistics


class StillClock:
    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    def sleep(self, duration_s: float) -> None:
        raise AssertionError


VALIDATION = OperatorReport("validate.results", {"epoch": 1.5, "accuracy": 0.875, "loss": 0.25, "images": 3000})
STATISTICS = NodeStatistics(
    node=1, steps=1200, sent_nbytes={0: 2_500_000}, samples={"compute.staleness": SampleStatistics(4, 8.0, 3.0, 2.0)}
)
EVENTS = [
    JobEvent(0, 0.0, 0.0, state="SUBMITTED"),
    JobEvent(1, 0.0, 0.0, state="PENDING", reason="needs 3 nodes; 2 are attached"),
    JobEvent(2, 0.0, 0.0, state="RUNNING"),
    JobEvent(3, 0.0, 1.0, node=1, statistics=STATISTICS),
    JobEvent(4, 0.0, 2.0, report=VALIDATION),
    JobEvent(5, 0.0, 75.0, state="FINISHED", stopped_by="epochs"),
]


def shown(events: list[JobEvent], *, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=140, markup=False, highlight=False)
    with Progress(4.0, console, StillClock()) as progress:
        for event in events:
            progress.handle(event)
    return out.getvalue()


def test_progress_not_on_a_terminal_is_plain_lines() -> None:
    assert shown(EVENTS, terminal=False).splitlines() == [
        "  0.00 s  SUBMITTED",
        "  0.00 s  PENDING: needs 3 nodes; 2 are attached",
        "  0.00 s  RUNNING",
        "  2.00 s  epoch 1.50  accuracy 0.8750  loss 0.2500  1,500 images/s  staleness 2  1,200 gradients  2.5 MB sent",
        "    1:15  FINISHED",
    ]


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.0, "0.00 s"),
        (0.0321, "0.0321 s"),
        (2.0, "2.00 s"),
        (12.34, "12.3 s"),
        (0.000282, "0.282 ms"),
        (59.96, "0:59"),
        (3661, "1:01:01"),
    ],
)
def test_seconds_for_people_have_three_digits_where_they_are_few(duration_s: float, text: str) -> None:
    assert seconds(duration_s) == text


def test_progress_on_a_terminal_has_a_bar_and_leaves_the_lines() -> None:
    text = shown(EVENTS, terminal=True)
    assert "━" in text
    assert "accuracy 0.8750" in text


def test_progress_counts_what_nodes_did_before_they_were_started_again() -> None:
    last = NodeStatistics(1, steps=34, sent_nbytes={0: 500_000}, incarnation=1)
    anew = [JobEvent(5, 0.0, 4.0, state="DEPLOYING"), JobEvent(6, 0.0, 5.0, statistics=NodeStatistics(1, steps=6))]
    events = [
        *EVENTS[:4],
        JobEvent(4, 0.0, 2.0, node=1, statistics=last),
        *anew,
        JobEvent(7, 0.0, 6.0, report=VALIDATION),
    ]
    line = shown(events, terminal=False).splitlines()[-1]
    assert line.endswith("500 images/s  1,240 gradients  3.0 MB sent")


def test_progress_failure_is_left_to_the_error_that_follows() -> None:
    events = [JobEvent(0, 0.0, 0.5, state="FAILED", reason="node-1: boom")]
    assert shown(events, terminal=False) == " 0.500 s  FAILED\n"


def test_progress_says_who_has_died_and_joined_in_one_line_each() -> None:
    crash = "its job process ended by SIGKILL"
    events = [
        JobEvent(0, 0.0, 3.0, node=2, change=NodeChange(2, "waiting", 0, crash, 0.0)),
        JobEvent(1, 0.0, 5.0, node=2, change=NodeChange(2, "alive", 1, "", 0.0)),
    ]
    assert shown(events, terminal=False) == (
        "  3.00 s  node 2 is dead and will be started again: its job process ended by SIGKILL\n"
        "  5.00 s  node 2 has joined, incarnation 1\n"
    )


def test_progress_shows_what_the_job_goes_on_without() -> None:
    assert shown([JobEvent(0, 0.0, 3.0, warning="no space")], terminal=False) == "  3.00 s  warning: no space\n"


def test_progress_of_other_reports_shows_their_fields() -> None:
    report = OperatorReport("count.totals", {"words": 7})
    assert shown([JobEvent(0, 0.0, 3.0, report=report)], terminal=False) == "  3.00 s  count.totals words=7\n"


def test_progress_diverged_loss_is_shown() -> None:
    report = OperatorReport("validate.results", {"epoch": 1, "accuracy": 0.1, "loss": float("nan")})
    assert "loss nan" in shown([JobEvent(0, 0.0, 3.0, report=report)], terminal=False)
