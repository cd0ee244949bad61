"""The table of a comparison: records in, rows out; and rows as Markdown, as JSON, and as cells for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from ako_jobs.compare.comparison import Case, Comparison
from ako_jobs.compare.runs import Outcome, Outcomes, Record
from ako_jobs.validations import validations
from dataflow.plain import plain

FORMAT = 1
"""Version of the JSON document's layout."""


@dataclass(frozen=True)
class Spread:
    """A quantity over the seeds. One that a run never reached counts as infinite.

    Args:
        median: of all runs that finished.
        least: the smallest.
        most: the largest.
    """

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """That of these values, where None stands for one never reached; None if there are none."""
        known = [math.inf if value is None else value for value in values]
        return cls(median(known), min(known), max(known)) if known else None


@dataclass(frozen=True)
class Figures:
    """What is told of one run that finished. Shares are of the time of the nodes that compute gradients.

    Args:
        accuracy: at the last validation; None if there was none.
        best: the highest at any validation.
        target_s: seconds to the first validation that reached the target; None if none did.
        target_epochs: epochs to that.
        epoch_s: seconds of an epoch; None if no epochs were told.
        computing: share of computing.
        waiting: share of waiting for others.
        sent_nbytes: bytes that all nodes together sent, of an epoch if epochs were told.
        sending_rate: bytes per second that a node sent on average.
        staleness: mean staleness of a gradient; None if it is not known.
        compression: how many times as large as codes what they stand for is; None without a codec.
    """

    accuracy: float | None
    best: float | None
    target_s: float | None
    target_epochs: float | None
    epoch_s: float | None
    computing: float
    waiting: float
    sent_nbytes: float
    sending_rate: float
    staleness: float | None
    compression: float | None

    @property
    def rest(self) -> float:
        """Share of neither computing nor waiting."""
        return max(0.0, 1 - self.computing - self.waiting)


@dataclass(frozen=True)
class Row:
    """A case over its seeds.

    Args:
        variant: its name.
        point: swept values by key.
        nodes: how many nodes.
        runs: how many runs were asked for.
        finished: how many finished.
        failed: how many did not; the others were not run.
        reached: how many of those that finished reached the target; None if there is none.
        target_s: seconds to the target.
        target_epochs: epochs to the target.
        speedup: how many times as fast as the first row: to the target if there is one, else through an epoch.
        accuracy: at the last validation.
        best: the highest of each run.
        epoch_s: seconds of an epoch.
        computing, waiting, rest: mean shares of the time of the nodes that compute gradients.
        sent_nbytes: mean bytes that all nodes together sent, of an epoch if epochs were told.
        sending_rate: mean bytes per second of a node.
        staleness: mean staleness of a gradient.
        compression: mean ratio of what codes stand for to their bytes; None without a codec.
    """

    variant: str
    point: Mapping[str, str]
    nodes: int
    runs: int
    finished: int
    failed: int
    reached: int | None
    target_s: Spread | None
    target_epochs: Spread | None
    speedup: float | None
    accuracy: Spread | None
    best: Spread | None
    epoch_s: Spread | None
    computing: float | None
    waiting: float | None
    rest: float | None
    sent_nbytes: float | None
    sending_rate: float | None
    staleness: float | None
    compression: float | None


def figures(record: Record, target: float | None) -> Figures:
    """What is told of a run.

    Args:
        record: its record.
        target: accuracy to which the time is measured, if any.
    """
    reports = validations(record["reports"])
    reached = next((report for report in reports if target is not None and report["accuracy"] >= target), None)
    told = [report["epoch"] for report in record["reports"] if isinstance(report.get("epoch"), int | float)]
    epochs = max(told, default=0.0)
    run_s, nodes = record["run_s"], record["nodes"]
    computing = [node for node in nodes if node["steps"]] or nodes
    time_s = len(computing) * run_s or math.inf
    sent_nbytes = record["totals"]["sent_nbytes"]
    return Figures(
        accuracy=reports[-1]["accuracy"] if reports else None,
        best=max((report["accuracy"] for report in reports), default=None),
        target_s=reached["time_s"] if reached else None,
        target_epochs=reached.get("epoch") if reached else None,
        epoch_s=run_s / epochs if epochs else None,
        computing=sum(node["computing_s"] for node in computing) / (time_s * tasks_per_node(record)),
        waiting=sum(node["waiting_s"] for node in computing) / time_s,
        sent_nbytes=sent_nbytes / (epochs or 1),
        sending_rate=sent_nbytes / (len(nodes) * run_s or math.inf),
        staleness=record["totals"]["staleness_mean"],
        compression=record["totals"].get("compression_ratio"),
    )


def tasks_per_node(record: Record) -> int:
    """Compute tasks of every node, as far as a record tells: those of a simulation, else one."""
    return int(record["simulation"]["tasks"]) if record.get("simulation") else 1


def rows(comparison: Comparison, outcomes: Outcomes) -> tuple[Row, ...]:
    """The rows of the table, one for each case."""
    found: list[Row] = []
    for case in comparison.cases():
        mine = [outcome for outcome in outcomes.ended if outcome.run.case == case]
        found.append(_row(case, comparison, mine, found[0] if found else None))
    return tuple(found)


def _row(case: Case, comparison: Comparison, outcomes: Sequence[Outcome], first: Row | None) -> Row:
    runs = [
        figures(outcome.record, comparison.target)
        for outcome in outcomes
        if outcome.record is not None and not outcome.reason
    ]
    aimed = comparison.target is not None
    target_s = Spread.of(run.target_s for run in runs) if aimed else None
    epoch_s = _spread(run.epoch_s for run in runs)
    first_s = (first.target_s if aimed else first.epoch_s) if first else (target_s if aimed else epoch_s)
    return Row(
        variant=case.variant,
        point=dict(case.point),
        nodes=case.nodes,
        runs=comparison.seeds,
        finished=len(runs),
        failed=sum(bool(outcome.reason) for outcome in outcomes),
        reached=sum(run.target_s is not None for run in runs) if aimed else None,
        target_s=target_s,
        target_epochs=Spread.of(run.target_epochs for run in runs) if aimed else None,
        speedup=_ratio(first_s, target_s if aimed else epoch_s),
        accuracy=_spread(run.accuracy for run in runs),
        best=_spread(run.best for run in runs),
        epoch_s=epoch_s,
        computing=_mean(run.computing for run in runs),
        waiting=_mean(run.waiting for run in runs),
        rest=_mean(run.rest for run in runs),
        sent_nbytes=_mean(run.sent_nbytes for run in runs),
        sending_rate=_mean(run.sending_rate for run in runs),
        staleness=_mean(run.staleness for run in runs),
        compression=_mean(run.compression for run in runs),
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    """That of the values that are known."""
    return Spread.of(value for value in values if value is not None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _ratio(first: Spread | None, other: Spread | None) -> float | None:
    if first is None or other is None or not 0 < other.median < math.inf or first.median == math.inf:
        return None
    return first.median / other.median


# Rows for people


def cells(comparison: Comparison, table: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings, and the cells of each row."""
    target = () if comparison.target is None else (f"s TO {comparison.target:.4g}", "EPOCHS TO IT")
    headings = ("VARIANT", *(key.upper() for key in comparison.sweep), "RUNS", "ACCURACY, %", "BEST, %", *target)
    headings += ("SPEED-UP", "s/EPOCH", "COMPUTE/WAIT/REST, %", "MB/EPOCH", "Mbit/s/NODE", "STALENESS")
    coded = any(row.compression is not None for row in table)
    headings += ("COMPRESSION",) if coded else ()
    return headings, [_cells(row, comparison.target is not None, coded) for row in table]


def _cells(row: Row, aimed: bool, coded: bool) -> tuple[str, ...]:
    """How a row is shown; a cell is empty where nothing is known."""
    target: tuple[str, ...] = ()
    if aimed:
        missed = "" if row.reached == row.finished else f"; {row.reached} of {row.finished} reached it"
        target = (_shown(row.target_s, _number) + missed, _shown(row.target_epochs, _number))
    compression = "" if row.compression is None else _number(row.compression)
    shares = (row.computing, row.waiting, row.rest)
    return (
        row.variant,
        *row.point.values(),
        f"{row.finished} of {row.runs}" + (f", {row.failed} failed" if row.failed else ""),
        _shown(row.accuracy, _percent),
        _shown(row.best, _percent),
        *target,
        "" if row.speedup is None else f"{row.speedup:.2f}",
        _shown(row.epoch_s, _number),
        "/".join(f"{100 * share:.0f}" for share in shares if share is not None),
        "" if row.sent_nbytes is None else f"{row.sent_nbytes / 1e6:,.1f}",
        "" if row.sending_rate is None else f"{row.sending_rate * 8 / 1e6:,.1f}",
        "" if row.staleness is None else f"{row.staleness:.1f}",
        *((compression,) if coded else ()),
    )


def _shown(spread: Spread | None, number: Callable[[float], str]) -> str:
    """The median, and the smallest and largest in brackets where they differ."""
    if spread is None:
        return ""
    middle, least, most = (
        "never" if value == math.inf else number(value) for value in (spread.median, spread.least, spread.most)
    )
    return middle if least == most else f"{middle} ({least} to {most})"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _number(value: float) -> str:
    """With three digits, or as many as stand before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def markdown(comparison: Comparison, table: Sequence[Row], outcomes: Outcomes) -> str:
    """The table as a page, with what failed below it."""
    headings, body = cells(comparison, table)
    lines = [headings, ["---"] * len(headings), *body]
    text = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return "\n\n".join((text, *remarks(comparison, outcomes))) + "\n"


def remarks(comparison: Comparison, outcomes: Outcomes) -> tuple[str, ...]:
    """What stands below the table: what failed, and what was not run."""
    planned, ended, failed = len(comparison.cases()) * comparison.seeds, len(outcomes.ended), outcomes.failed
    found = []
    if ended < planned:
        found.append(f"missing: {planned - ended} of {planned} runs; the same command goes on with them")
    if failed:
        reasons = "\n".join(f"- {outcome.run.name}: {outcome.reason}" for outcome in failed)
        found.append(f"{len(failed)} of {planned} runs failed:\n\n{reasons}")
    return tuple(found)


def document(comparison: Comparison, table: Sequence[Row], outcomes: Outcomes) -> dict[str, Any]:
    """The table as a JSON document; what was never reached, and what is not known, is null."""
    return {
        "format": FORMAT,
        "comparison": comparison.model_dump(mode="json"),
        "rows": [plain(row) for row in table],
        "failures": [{"run": outcome.run.name, "reason": outcome.reason} for outcome in outcomes.failed],
        "missing": len(comparison.cases()) * comparison.seeds - len(outcomes.ended),
    }
