"""What the nodes of a simulated cluster work on, and when it is done; how fast that goes is `dataflow.sim.cores`.

Besides computing, a node does one thing at a time, in the order in which they come up. On cores that are not even
nobody knows ahead when something is done, so it is looked at again at the earliest moment at which it may be.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from dataflow.engine.events import TaskFinished
from dataflow.sim.clock import Action, VirtualClock
from dataflow.sim.cores import Cores
from dataflow.sim.costs import TaskTimes
from dataflow.sim.machine import Machine, Part
from dataflow.sim.model import ClusterModel
from dataflow.sim.pace import Pace

_Waiting = tuple[int, Cores, bool, float, float, Action, Any]
"""A node, its cores, whether these compute something or do something else, the mark of that, when it came up, and what
is to be done once it is done."""


class Processors:
    """The processors of all nodes.

    Args:
        clock: the clock.
        model: the cluster.
        times: how long the engine of a node takes.
        nodes: how many there are.
        seed: of where in their slices nodes begin.
    """

    def __init__(self, clock: VirtualClock, model: ClusterModel, times: TaskTimes, nodes: int, seed: int) -> None:
        self._clock, self._model, self._times = clock, model, times
        self._at_done: Action = self._done  # a method would be bound anew each time
        slices = random.Random(f"slices {seed}")
        self._phases_s = [slices.uniform(0.0, model.slice_s) for _ in range(nodes)]
        self._machine = Machine(model.cores) if model.cores else None
        self._cores = [self._make_cores(node) for node in range(nodes)]
        self._besides: list[deque[_Waiting]] = [deque() for _ in self._cores]
        """By node whose cores are not even, what it is to do besides computing, in the order in which that came up."""

    def renew(self, node: int) -> None:
        """Have a node that is started again work on nothing."""
        self._cores[node] = self._make_cores(node)
        self._besides[node].clear()

    def awake_s(self, node: int) -> float:
        """The first moment from now on at which a node does not stand still, as far as it is known."""
        cores, now = self._cores[node], self._clock.now()
        return now if cores.even else cores.awake_s(now)

    def compute(self, node: int, work_s: float, action: Action, argument: Any) -> None:
        """Do something once a node has computed so much."""
        now, cores = self._clock.now(), self._cores[node]
        mark = cores.compute(now, work_s)
        waiting = node, cores, True, mark, now, action, argument
        self._clock.at(cores.computed_s(now, mark), self._at_done, waiting)

    def beside(self, node: int, work_s: float, action: Action, argument: Any) -> None:
        """Do something once a node has done work besides computing."""
        now, cores = self._clock.now(), self._cores[node]
        if cores.even:
            self._clock.at(cores.done_s(now, work_s), action, argument)
        else:
            waiting = node, cores, False, cores.beside(now, work_s), now, action, argument
            self._besides[node].append(waiting)
            if len(self._besides[node]) == 1:
                self._wait(waiting)

    def _wait(self, waiting: _Waiting) -> None:
        """Look again once something besides computing that comes first may be done.

        What is behind it is looked at only then: it may be done at the same moment, and never before.
        """
        now = self._clock.now()
        self._clock.at(waiting[1].beside_s(now, waiting[3]), self._at_done, waiting)

    def _done(self, waiting: _Waiting) -> None:
        """Do what was to be done, unless what else the node did has held up the work."""
        node, cores, computing, mark, since_s, action, argument = waiting
        if cores is not self._cores[node]:
            return
        now = self._clock.now()
        done_s = cores.computed_s(now, mark) if computing else cores.beside_s(now, mark)
        if done_s > now:
            self._clock.at(done_s, self._at_done, waiting)
            return
        if computing:
            cores.end(now, mark)
        else:
            besides = self._besides[node]
            besides.popleft()
            if besides:
                self._wait(besides[0])
        if not cores.even:
            took_s = now - since_s if computing else cores.turn_s(now, since_s)
            finished = argument[1]
            if isinstance(finished, TaskFinished) and finished.busy_s:  # the rest is its engine's
                finished.busy_s *= took_s / (finished.busy_s + self._times.engine_s(node))
        action(argument)

    def _make_cores(self, node: int) -> Cores:
        model, pace = self._model, Pace(self._model.faults, node)
        if pace.even and not model.cpu and not self._machine:
            return Cores(model.tasks)
        machine = self._machine or Machine(model.tasks + 1 if model.cpu else model.tasks)
        if not model.cpu:
            return Part(machine, pace)
        quota_s = model.cpu * model.slice_s
        return Part(machine, pace, quota_s, model.slice_s, self._phases_s[node], min(model.tasks + 1, machine.cores))
