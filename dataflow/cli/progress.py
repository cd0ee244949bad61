"""The progress of a running job: a live line and a bar on a terminal, plain lines elsewhere; on standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from dataflow.cli.common import megabytes, seconds
from dataflow.clock import Clock, SystemClock
from dataflow.observe.events import JobEvent
from dataflow.observe.newest import Newest
from dataflow.reports import NodeStatistics, OperatorReport, samples_named

_MEANINGS = {
    "DEPLOYING": "nodes open data, compile kernels and connect",
    "CANCELLING": "Ctrl-C again does not wait for it",
}


class Progress:
    """Shows events as they come. Use it in a ``with`` statement.

    Args:
        epochs: those of the whole job, for the bar; no bar if None.
        console: where to show it.
        clock: for the time since the last event.
    """

    def __init__(self, epochs: float | None, console: Console | None = None, clock: Clock | None = None) -> None:
        self._console = console or Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._epochs, self._clock = epochs, clock or SystemClock()
        self._state, self._job, self._elapsed_s, self._heard_s = "starting", "", 0.0, 0.0
        self._report: OperatorReport | None = None
        self._report_s = 0.0
        self._nodes: dict[int, NodeStatistics] = {}
        self._counted = Newest()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render, console=self._console, transient=True, refresh_per_second=5
            ).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def name(self, job: str) -> None:
        """Say with the first event which job this is, as it can be asked for elsewhere."""
        self._job = job

    def handle(self, event: JobEvent) -> None:
        """Show an event."""
        self._elapsed_s, self._heard_s = event.elapsed_s, self._clock.now()
        if event.statistics is not None:
            self._nodes[event.statistics.node] = event.statistics
            self._counted.take(event.statistics)
        elif event.report is not None:
            self._report, self._report_s = event.report, event.elapsed_s
            self._say(self._line())
        elif event.warning:
            self._say(f"warning: {event.warning}")
        elif event.master_away is not None:
            from_s, to_s = event.master_away
            self._say(f"the master is back after {seconds(to_s - from_s)}; the job went on")
        elif event.adjustment is not None:
            self._say(str(event.adjustment))
        elif event.change is not None:
            self._say(f"node {event.node} {event.change}")
        else:
            self._state = event.state
            if event.state == "DEPLOYING":  # of a job that begins again, whose nodes count from 0
                self._counted.begin_again()
            # Why a job failed is the error that the command ends with.
            why = _MEANINGS.get(event.state, "") or (event.reason if event.state == "PENDING" else "")
            named = f" as {self._job}" if event.state == "SUBMITTED" and self._job else ""
            self._say(event.state + named + (f": {why}" if why else ""))

    def _say(self, line: str) -> None:
        self._console.print(f"{seconds(self._elapsed_s):>8}  {line}", soft_wrap=True)

    def _render(self) -> RenderableType:
        since_s = self._clock.now() - self._heard_s if self._state == "RUNNING" else 0.0
        head = Text(f"{self._state} {seconds(self._elapsed_s + since_s)}  {self._line()}", no_wrap=True)
        if self._epochs is None:
            return head
        return Group(head, ProgressBar(total=self._epochs, completed=min(self._epoch(), self._epochs), width=60))

    def _line(self) -> str:
        """The newest numbers, those that are known."""
        parts = []
        fields = self._report.fields if self._report else {}
        for name, shown in (("epoch", "{:.2f}"), ("accuracy", "{:.4f}"), ("loss", "{:.4f}")):
            value = fields.get(name)
            if isinstance(value, int | float):
                parts.append(f"{name} {shown.format(value)}")
        images = fields.get("images")
        if isinstance(images, int) and self._report_s > 0:
            parts.append(f"{images / self._report_s:,.0f} images/s")
        staleness = [sample.last for sample in samples_named(self._nodes.values(), "staleness")]
        if staleness:
            parts.append(f"staleness {max(staleness):.0f}")
        gradients = sum(each.steps for each in self._counted)
        if gradients:
            parts.append(f"{gradients:,} gradients")
        if self._nodes:
            sent = sum(sum(each.sent_nbytes.values()) for each in self._counted)
            parts.append(f"{megabytes(sent)} sent")
        if not parts and self._report is not None:
            parts = [f"{self._report.port} {name}={value}" for name, value in fields.items()]
        return "  ".join(parts)

    def _epoch(self) -> float:
        epoch = self._report.fields.get("epoch") if self._report else 0.0
        return float(epoch) if isinstance(epoch, int | float) else 0.0
