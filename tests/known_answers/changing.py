"""Trees in the memory driver that somebody changes while they run: with the coordinator's own part in that."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from dataflow.engine import coordination as co
from dataflow.engine.adjusting import Adjusting, tells_of_change
from dataflow.engine.events import Event
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.operators_api import Adjustment
from dataflow.plan.physical import PhysicalPlan
from dataflow.reports import OperatorReport
from operators.topology import Topology


class ChangingDriver(MemoryDriver):
    """A memory driver in which changes of the tree are asked for at certain events.

    Args:
        plan: the physical plan.
        changes: number of an event, and the tree that is asked for then; left out if another change is under way.
        order: see `MemoryDriver`.
        nodes: those that make changes; None: all.

    Attributes:
        told: what became of the changes.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        changes: Sequence[tuple[int, Topology]],
        *,
        order: np.random.Generator | None = None,
        nodes: Collection[int] | None = None,
    ) -> None:
        super().__init__(plan, order=order, on_report=ChangingDriver._hear)
        self.told: list[co.TellAdjustment] = []
        self._asked = sorted(((at, tree.model_dump_json()) for at, tree in changes), key=lambda change: change[0])
        self._adjusting = Adjusting(range(len(plan.nodes)) if nodes is None else nodes)

    def begin_asking(self, at: int, text: str) -> None:
        """Have a change asked for at a certain event, in whatever words."""
        self._asked.append((at, text))

    def _handle(self, node: int, event: Event) -> None:
        super()._handle(node, event)
        if self._asked and self.run.deliveries >= self._asked[0][0]:
            _, text = self._asked.pop(0)
            if self._may_be_changed():
                self._obey(self._adjusting.ask(f"{self.run.deliveries}", text))
        if self.run.ended:
            self._obey(self._adjusting.drop("a node is through"))

    def _may_be_changed(self) -> bool:
        return not self._adjusting.under_way and not self.run.ended

    def _hear(self, node: int, report: OperatorReport) -> None:
        if tells_of_change(report):
            self._obey(self._adjusting.take(node, f"node-{node}", report, 0.0))

    def _obey(self, commands: Sequence[co.Command]) -> None:
        for command in commands:
            match command:
                case co.AdjustNodes(_, number, stage, text):
                    self.adjust(Adjustment(number, stage, text))
                case co.TellAdjustment():
                    self.told.append(command)

    def stages(self) -> list[str]:
        """What became of the changes, in order, but for their beginning."""
        return [each.stage for each in self.told if each.stage in ("dropped", "settled")]
