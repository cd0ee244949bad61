"""How a run went over time, out of its record: what pictures are drawn from."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ako_jobs.compare.runs import Record
from ako_jobs.compare.table import tasks_per_node
from ako_jobs.validations import validations

Floats = npt.NDArray[np.float64]

BINS = 60
"""Stretches of time of equal length that a run is divided into, if it has so many points."""


@dataclass(frozen=True)
class Accuracies:
    """Test accuracy at each validation, with the seconds and the epochs at which it was taken; all of one length."""

    time_s: Floats
    epochs: Floats
    accuracy: Floats


@dataclass(frozen=True)
class Rates:
    """Means over stretches of a run; all of one length.

    Args:
        time_s: the middle of each stretch.
        sending: bytes per second of a node.
        utilisation: share of the compute tasks of all nodes that were busy.
        staleness: of the gradients of the stretch; NaN where there were none.
        gap: how far the replicas were apart, root mean square; NaN where it was not measured.
        gradient_gap: how far weights moved until a gradient was applied, likewise.
        normalised_gap: the same over the gradient's norm.
        lag: updates until a gradient was applied, likewise.
    """

    time_s: Floats
    sending: Floats
    utilisation: Floats
    staleness: Floats
    gap: Floats
    gradient_gap: Floats
    normalised_gap: Floats
    lag: Floats


def accuracies(record: Record) -> Accuracies:
    """The validations of a run; epochs are NaN if they were not told."""
    reports = validations(record["reports"])
    columns = [
        np.array([np.nan if report.get(key) is None else report[key] for report in reports], dtype=np.float64)
        for key in ("time_s", "epoch", "accuracy")
    ]
    return Accuracies(*columns)


def rates(record: Record) -> Rates:
    """How busy nodes and network were over time; empty if the run told nothing."""
    points, nodes = record["series"], len(record["nodes"])
    times = np.array([0.0, *(point["time_s"] for point in points)])
    edges = np.linspace(0.0, times[-1], min(BINS, len(points)) + 1)
    length_s = np.diff(edges)

    def gained(key: str) -> Floats:
        """What a counter grew by in each stretch; one that an older record does not have stood still."""
        return np.diff(np.interp(edges, times, [0.0, *(point.get(key, 0.0) for point in points)]))

    def mean(total: str, count: str) -> Floats:
        """What was measured in each stretch, on average; NaN where nothing was."""
        counts = gained(count)
        return np.divide(gained(total), counts, out=np.full_like(counts, np.nan), where=counts > 0)

    if not points or times[-1] <= 0:
        nothing = np.empty(0)
        return Rates(*[nothing] * len(fields(Rates)))
    return Rates(
        time_s=(edges[:-1] + edges[1:]) / 2,
        sending=gained("sent_nbytes") / length_s / nodes,
        utilisation=gained("computing_s") / length_s / (nodes * tasks_per_node(record)),
        staleness=mean("staleness", "stale_gradients"),
        gap=mean("gap", "gaps"),
        gradient_gap=mean("gradient_gap", "gapped_gradients"),
        normalised_gap=mean("normalised_gap", "normalised_gradients"),
        lag=mean("lag", "lagged_gradients"),
    )


def traffic(records: list[Record]) -> Floats:
    """Bytes that nodes sent each other, the mean of several runs: (sender, receiver)."""
    nodes = max(_nodes(record) for record in records)
    sent = np.zeros((nodes, nodes))
    for record in records:
        for link in record["links"]:
            sent[link["source"], link["target"]] += link["sent_nbytes"] / len(records)
    return sent


def _nodes(record: Record) -> int:
    """How many nodes a run had, those included that had told nothing since they were started again."""
    linked: list[int] = [max(link["source"], link["target"]) for link in record["links"]]
    return max([len(record["nodes"]), *(number + 1 for number in linked)])
