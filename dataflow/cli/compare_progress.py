"""The progress of a comparison: bars on a terminal, a line per run elsewhere; on standard error."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ako_jobs.compare.runs import Outcome, Run
from ako_jobs.compare.table import figures
from dataflow.cli.common import seconds
from dataflow.observe.events import JobEvent


class CompareProgress:
    """Shows how the runs of a comparison go. Use it in a ``with`` statement.

    Args:
        total: how many runs there are.
        console: where to show it.
    """

    def __init__(self, total: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._total, self._ended, self._run = total, 0, ""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._all: TaskID = self._bars.add_task("all runs", total=total, said=f"0/{total}")
        self._one: TaskID = self._bars.add_task("", total=None, said="", visible=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def outdated(self, runs: Sequence[Run]) -> None:
        """Say that runs which finished are run again."""
        many = "a run that finished is run again" if len(runs) == 1 else f"{len(runs)} runs that finished are run again"
        self._console.print(
            f"note: {many}: the job's code, Ako's version or the record has changed since", soft_wrap=True
        )

    def begin(self, run: Run) -> None:
        """Show that a run is prepared."""
        self._run = run.name
        self._bars.reset(self._one, total=None, description=run.name, said="preparing", visible=True)

    def start(self, epochs: float | None) -> None:
        """Show that it starts."""
        self._bars.update(self._one, total=epochs, said="starting")

    def event(self, event: JobEvent) -> None:
        """Show how it goes."""
        fields = event.report.fields if event.report else {}
        epoch, accuracy = fields.get("epoch"), fields.get("accuracy")
        if isinstance(epoch, int | float):
            said = f"{accuracy:.2%} after {seconds(event.elapsed_s)}" if isinstance(accuracy, float) else ""
            self._bars.update(self._one, completed=epoch, said=said, refresh=True)

    def end(self, outcome: Outcome) -> None:
        """Show what became of a run."""
        self._ended += 1
        before = "" if outcome.run.name == self._run else " (run before)"
        self._bars.update(self._all, completed=self._ended, said=f"{self._ended}/{self._total}")
        self._console.print(
            f"{self._ended}/{self._total}  {outcome.run.name}: {_said(outcome)}{before}", soft_wrap=True
        )


def _said(outcome: Outcome) -> str:
    if outcome.reason or outcome.record is None:
        return f"failed: {outcome.reason}"
    accuracy = figures(outcome.record, None).accuracy
    shown = "" if accuracy is None else f", accuracy {accuracy:.2%}"
    return f"{seconds(outcome.record['run_s'])}{shown}"
