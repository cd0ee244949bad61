"""The stop rules of a job that go by what its operators report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataflow.engine.job_life import StoppedBy
from dataflow.reports import OperatorReport

if TYPE_CHECKING:
    from dataflow.plan.job import StopRules


class StopWatch:
    """The watched metrics as they are reported.

    Args:
        rules: what they are watched for.
    """

    def __init__(self, rules: StopRules) -> None:
        self._rules = rules
        self._metrics = (rules.metric, (rules.patience_metric if rules.patience is not None else "") or rules.metric)
        self._held = self._since_best = 0
        self._best = float("-inf")

    def minds(self, report: OperatorReport) -> bool:
        """Whether any rule goes by a report."""
        return bool(self._rules.report) and report.port == self._rules.report

    def fault(self, report: OperatorReport) -> str:
        """Why the rules cannot be followed with such reports; empty if they can."""
        for metric in self._metrics:
            if isinstance(value := report.fields.get(metric), bool) or not isinstance(value, int | float):
                fields = ", ".join(sorted(report.fields))
                return f"the stop rule watches {metric!r}, which {report.port} does not report; it has: {fields}"
        return ""

    def take(self, report: OperatorReport) -> StoppedBy:
        """Take in a report without fault; the rule that holds now, empty if none does."""
        rules = self._rules
        said = [report.fields[metric] for metric in self._metrics]
        value, patient = [each for each in said if isinstance(each, int | float)]
        self._held = self._held + 1 if rules.target is not None and value >= rules.target else 0
        better = patient > self._best
        self._best = patient if better else self._best
        self._since_best = 0 if better else self._since_best + 1
        if self._held >= rules.hold:
            return "target"
        return "patience" if rules.patience is not None and self._since_best >= rules.patience else ""
