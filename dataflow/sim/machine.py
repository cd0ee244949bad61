"""A machine whose cores simulated nodes share, and what each has of them: for nodes that wait for others, or rest.

Between two moments at which something changes, every node goes on at one pace: a slice begins or is used up, something
is done, a node pauses. So what is done is worked out from each of these to the next.
"""

from __future__ import annotations

import math
from typing import Final

from dataflow.sim.cores import ROUNDING_S, Cores
from dataflow.sim.pace import Pace

_ROUNDING: Final = 1e-9
"""Of a slice, which sums of rounded numbers may be off."""

_SOON_S: Final = 1e-6
"""What comes this soon is not asked for ahead: whoever waits is told too late by no more."""


class Machine:
    """Cores that nodes share alike: one that wants less than its part leaves the rest to the others.

    A node that has failed finishes what it was at: were it gone at once, whoever has been told when to ask again would
    ask too late.

    Args:
        cores: how many.
    """

    def __init__(self, cores: float) -> None:
        self.cores = cores
        self._nodes: list[Part] = []
        self._seen_s = 0.0

    def join(self, node: Part) -> None:
        """Have a node share its cores."""
        self._nodes.append(node)

    def look(self, now: float) -> None:
        """Work out what every node has done until now, and how each goes on."""
        while self._seen_s < now:
            until_s = min(now, self.change_s())
            for node in self._nodes:
                node.go_on(self._seen_s, until_s)
            self._seen_s = until_s
            self.divide()

    def divide(self) -> None:
        """Divide the cores, since some node may want more or less of them than before."""
        left, wanting = self.cores, 0
        for node in self._nodes:
            node.want(self._seen_s)
            wanting += node.wants > 0.0
        for node in sorted(self._nodes, key=_wants) if wanting > 1 else self._nodes:
            if node.wants > 0.0:
                node.get(min(node.wants, left / wanting))
                left, wanting = left - node.gets, wanting - 1

    def change_s(self) -> float:
        """When some node does not go on as it does now, unless something comes up before."""
        change_s = math.inf
        for node in self._nodes:
            change_s = min(change_s, node.change_s(self._seen_s))
        return change_s

    def may_change_s(self, asking: Part) -> float:
        """When a node may have more than now at the earliest, also if something comes up on the others before."""
        change_s = asking.change_s(self._seen_s)
        for node in self._nodes:
            if node is not asking:
                change_s = min(change_s, node.may_change_s(self._seen_s))
        return change_s


class Part(Cores):
    """What a node has of a machine.

    It is slow and pauses as its faults say. With a quota it may use so many seconds of processor time in each slice;
    once they are used up it stands still until the next slice begins, as control groups have it, with all that comes up
    meanwhile. What it does not use of a slice is lost.

    Args:
        machine: whose cores it shares.
        pace: how slow it is at which time.
        quota_s: of each slice; as much as there is if infinite.
        slice_s: seconds from the begin of one slice to that of the next.
        phase_s: when one begins, less than `slice_s`.
        most: cores that it can use at most; as many as the machine has if 0.
    """

    even = False

    def __init__(
        self,
        machine: Machine,
        pace: Pace,
        quota_s: float = math.inf,
        slice_s: float = math.inf,
        phase_s: float = 0.0,
        most: float = 0.0,
    ) -> None:
        super().__init__(0)
        self._machine, self._pace = machine, pace
        self._most = most or machine.cores
        self._quota_s, self._slice_s, self._slice_end_s = quota_s, slice_s, phase_s
        self._used_s = 0.0
        self._slowness, self._changes_s = pace.at(0.0)
        self._marks: list[float] = []
        self._running = 0
        """Compute tasks that are not done."""
        self.wants = self.gets = 0.0
        """Cores that it could use, and those that it has."""
        self._beside_pace = self._compute_pace = 0.0
        machine.join(self)

    def compute(self, now: float, work_s: float) -> float:
        """A compute task begins; see `Cores`."""
        mark = super().compute(now, work_s)
        self._marks.append(mark)
        self._machine.divide()
        return mark

    def computed_s(self, now: float, mark: float) -> float:
        """When a compute task is done, at the earliest; see `Cores`."""
        self.look(now)
        return self._earliest_s(now, mark - self._computed_s, self._compute_pace)

    def end(self, now: float, mark: float) -> None:
        """A compute task has ended."""
        super().end(now, mark)
        self._marks.remove(mark)
        self._machine.divide()

    def beside(self, now: float, work_s: float) -> float:
        """Something else comes up; see `Cores`."""
        mark = super().beside(now, work_s)
        self._machine.divide()
        return mark

    def beside_s(self, now: float, mark: float) -> float:
        """When something besides computing is done, at the earliest; see `Cores`."""
        self.look(now)
        return self._earliest_s(now, mark - self._beside_s, self._beside_pace)

    def awake_s(self, now: float) -> float:
        """The first moment from now on at which the node does not stand still, as far as it is known."""
        self.look(now)
        if math.isinf(self._slowness):
            return self._changes_s
        return self._slice_end_s if self._is_spent() else now

    def look(self, now: float) -> None:
        """Work out what is done until now."""
        self._machine.look(now)

    # What its machine asks

    def want(self, now: float) -> None:
        """Say how many cores it could use from now on; it gets none before it is told."""
        if now >= self._changes_s:
            self._slowness, self._changes_s = self._pace.at(now)
        if now >= self._slice_end_s:
            self._used_s = 0.0
            self._slice_end_s += (math.floor((now - self._slice_end_s) / self._slice_s) + 1) * self._slice_s
            if self._slice_end_s <= now:  # of rounding
                self._slice_end_s += self._slice_s
        self.gets = self.wants = self._beside_pace = self._compute_pace = 0.0
        self._running = 0
        for mark in self._marks:
            self._running += mark > self._computed_s
        if not (math.isinf(self._slowness) or self._is_spent()):
            self.wants = self._running + (1.0 if self._asked_s > self._beside_s else 0.0)

    def get(self, cores: float) -> None:
        """Go on with so many cores; what there is to do besides computing comes first."""
        self.gets = cores
        if self._asked_s > self._beside_s:
            first = min(1.0, cores)
            self._beside_pace, cores = first / self._slowness, cores - first
        if self._running:
            self._compute_pace = min(1.0, cores / self._running) / self._slowness

    def change_s(self, now: float) -> float:
        """When it does not go on as it does now, unless something comes up before."""
        if math.isinf(self._slowness):
            return self._changes_s
        if not self._running and self._asked_s <= self._beside_s:
            return math.inf
        change_s = min(self._changes_s, self._slice_end_s)
        if self.gets > 0.0:
            change_s = min(change_s, self._spent_s(now), self._besides_done_s(now), self._next_s(now))
        return change_s

    def may_change_s(self, now: float) -> float:
        """The same, also if something comes up before, with which its quota is used up sooner."""
        change_s, left_s = self.change_s(now), (self._quota_s - self._used_s) / self._most
        return change_s if left_s < _SOON_S else min(change_s, now + left_s)

    def go_on(self, now: float, until_s: float) -> None:
        """Work from now until then; what is used up or done at that moment is so exactly."""
        if self.gets <= 0.0:
            return
        passed_s, spent_s = until_s - now, self._spent_s(now)
        besides_done_s, next_s = self._besides_done_s(now), self._next_s(now)
        self._used_s = self._quota_s if spent_s <= until_s else self._used_s + self.gets * passed_s
        self._beside_s = self._asked_s if besides_done_s <= until_s else self._beside_s + self._beside_pace * passed_s
        self._computed_s = self._next() if next_s <= until_s else self._computed_s + self._compute_pace * passed_s

    def _is_spent(self) -> bool:
        return self._quota_s - self._used_s <= ROUNDING_S

    def _spent_s(self, now: float) -> float:
        """When its quota is used up."""
        return now + (self._quota_s - self._used_s) / self.gets

    def _besides_done_s(self, now: float) -> float:
        """When all that there is to do besides computing is done."""
        pace, left_s = self._beside_pace, self._asked_s - self._beside_s
        return now + left_s / pace if pace > 0.0 else math.inf

    def _next_s(self, now: float) -> float:
        """When the next compute task is done."""
        pace = self._compute_pace
        return now + (self._next() - self._computed_s) / pace if pace > 0.0 else math.inf

    def _next(self) -> float:
        """The mark of the compute task that is done next."""
        next_mark = math.inf
        for mark in self._marks:
            if self._computed_s < mark < next_mark:
                next_mark = mark
        return next_mark

    def _earliest_s(self, now: float, left_s: float, pace: float) -> float:
        """When so much work is done at a pace, or when that may change."""
        if left_s <= ROUNDING_S:
            return now
        done_s = now + left_s / pace if pace > 0.0 else math.inf
        earliest_s = min(done_s, self._machine.may_change_s(self))
        if earliest_s <= now < done_s:  # as something of another node is left that is too short for its time to tell
            earliest_s = math.nextafter(now, math.inf)
        if self._pace.even and not math.isinf(self._quota_s):
            more = (left_s - (self._quota_s - self._used_s)) / self._quota_s
            if more > 0.0:  # which it gets in the next slices, and at most all of each
                earliest_s = max(earliest_s, self._slice_end_s + (math.ceil(more - _ROUNDING) - 1) * self._slice_s)
        return earliest_s


def _wants(node: Part) -> float:
    return node.wants
