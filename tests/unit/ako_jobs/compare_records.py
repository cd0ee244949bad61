"""Records made by hand, of what a comparison reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ako_jobs.compare.comparison import Comparison
from ako_jobs.compare.runs import Outcome, Outcomes, Run, runs

VALIDATIONS = ((2.0, 1.0, 0.5), (4.0, 2.0, 0.8), (10.0, 5.0, 0.75))


def record(
    validations: tuple[tuple[float, float, float], ...] = VALIDATIONS,
    *,
    run_s: float = 10.0,
    tasks: int = 1,
    compression: float | None = None,
) -> dict[str, Any]:
    """Two workers and a server; validations are (seconds, epochs, accuracy)."""
    return {
        "state": "FINISHED",
        "run_s": run_s,
        "reports": [
            *({"time_s": time_s, "epoch": epoch, "accuracy": share} for time_s, epoch, share in validations),
            {"time_s": run_s, "port": "other.numbers", "value": 1},
        ],
        "totals": {"sent_nbytes": 6_000_000, "staleness_mean": 1.5, "compression_ratio": compression},
        "nodes": [
            {"node": 0, "steps": 5, "computing_s": 4.0, "waiting_s": 1.0},
            {"node": 1, "steps": 5, "computing_s": 2.0, "waiting_s": 5.0},
            {"node": 2, "steps": 0, "computing_s": 0.0, "waiting_s": 0.0},
        ],
        "links": [
            {"source": 0, "target": 2, "sent_nbytes": 1_000_000},
            {"source": 2, "target": 0, "sent_nbytes": 5_000_000},
        ],
        "series": [
            point(
                time_s=2.0, computing_s=3.0, sent_nbytes=1_200_000, stale_gradients=4, staleness=8.0, gaps=1, gap=0.5
            ),
            point(
                time_s=6.0, computing_s=3.0, sent_nbytes=6_000_000, stale_gradients=4, staleness=8.0, gaps=1, gap=0.5
            ),
            point(
                time_s=10.0, computing_s=6.0, sent_nbytes=6_000_000, stale_gradients=10, staleness=9.5, gaps=3, gap=0.75
            ),
        ],
        "simulation": {"tasks": tasks, "task_s": []},
    }


def point(time_s: float, **counted: float) -> dict[str, float]:
    return {"time_s": time_s, **counted}


def comparison(**said: Any) -> Comparison:
    """Two variants, three seeds, target 80%, unless something else is said."""
    given = {"variants": {"a": {"job": "ako"}, "b": {"job": "all_to_all"}}, "target": 0.8, "cluster": {}}
    return Comparison.parse({**given, **said})


def outcomes(compared: Comparison, *records: dict[str, Any] | str | None) -> Outcomes:
    """Of the runs in order: a record, why it failed, or None for one that was not run."""
    ended: list[Outcome] = []
    for run, found in zip(runs(compared), records, strict=True):
        if isinstance(found, str):
            ended.append(Outcome(run, None, found))
        elif found is not None:
            ended.append(Outcome(run, found))
    return Outcomes(tuple(ended))


class Watch:
    """Notes what a comparison tells; does `on_event` at each event."""

    def __init__(self, on_begin: Any = lambda run: None, on_event: Any = lambda event: None) -> None:
        self.begun: list[str] = []
        self.again: list[str] = []
        self.ended: list[Outcome] = []
        self.epochs: list[float | None] = []
        self._on_begin, self._on_event = on_begin, on_event

    def outdated(self, runs: Sequence[Run]) -> None:
        self.again = [run.name for run in runs]

    def begin(self, run: Run) -> None:
        self._on_begin(run)
        self.begun.append(run.name)

    def start(self, epochs: float | None) -> None:
        self.epochs.append(epochs)

    def event(self, event: Any) -> None:
        self._on_event(event)

    def end(self, outcome: Outcome) -> None:
        self.ended.append(outcome)


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
