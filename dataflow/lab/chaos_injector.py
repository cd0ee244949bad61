"""Faults done to a lab while a job runs in it, on a thread of their own.

Invariant: what a fault has changed is changed back when its time is over, and when the injector is left, however.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from dataflow.clock import Clock, SystemClock
from dataflow.lab import lab
from dataflow.lab.chaos import LOSS, SLOWER, Fault, Kind, Since
from dataflow.lab.chaos_disk import SmallDisk
from dataflow.lab.plan import LabPlan, Station
from dataflow.lab.processes import processes, send_signal, words_of
from dataflow.runtime.local_cluster import LocalCluster

_JOB_PROCESS: Final = "dataflow.runtime.job_process"
_POLL_S: Final = 0.1
_QUICK_POLL_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was done.

    Args:
        fault: the fault.
        began_s, ended_s: when, in seconds since 1970-01-01 UTC.
        hit: whether there was anything that it could befall: nobody can be killed who is dead.
    """

    fault: Fault
    began_s: float
    ended_s: float
    hit: bool


class Injector:
    """Does faults to a lab from the moment that it is told to `begin`. Use it in a ``with`` statement.

    Args:
        plan: the lab, which is up.
        cluster: that of the job, in the lab; the thread that makes an injector is at the switch.
        faults: in their order.
        disk: where the job keeps its checkpoints; None if no fault fills it.
        clock: the clock.
    """

    def __init__(
        self,
        plan: LabPlan,
        cluster: LocalCluster,
        faults: Sequence[Fault],
        disk: SmallDisk | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._plan, self._cluster, self._faults, self._disk = plan, cluster, faults, disk
        self._clock = clock or SystemClock()
        self._begin, self._leave, self._began_s = threading.Event(), threading.Event(), 0.0
        self._thread = threading.Thread(target=self._run, name="ako-chaos")
        self._done: list[Injected] = []
        self._struck, self._looked_up = set[int](), list[int]()
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.set()
        self._begin.set()
        # The master that was started again lives as long as the thread.
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def begin(self) -> None:
        """The job runs: count the seconds of the faults from now on."""
        self._began_s = self._clock.now()
        self._begin.set()

    @property
    def injected(self) -> tuple[Injected, ...]:
        """The faults that were done until now, in their order."""
        return tuple(self._done)

    def _run(self) -> None:
        try:
            for fault in self._faults:
                if not self._comes(fault):
                    return
                began_s = self._clock.wall()
                with self._doing(fault) as hit:
                    self._leave.wait(fault.for_s)
                self._done.append(Injected(fault, began_s, self._clock.wall(), hit))
        except BaseException as error:  # it is raised again where the injector is left
            self._error = error
        finally:
            self._leave.wait()

    def _comes(self, fault: Fault) -> bool:
        """Wait for the moment of a fault; whether it came before the injector is left."""
        if fault.since is Since.PROCESS:
            station = self._host(fault.host)
            while self._struck.issuperset(job_processes(station)):
                if self._leave.wait(_POLL_S):
                    return False
            return not self._leave.wait(fault.at_s)
        self._begin.wait()
        if self._leave.wait(max(0.0, self._began_s + fault.at_s - self._clock.now())):
            return False
        return fault.since is Since.RUN or self._checkpoint_begins(self._host(fault.host))

    def _checkpoint_begins(self, station: Station) -> bool:
        """Wait for a checkpoint to be begun; whether one was before the injector is left."""
        # It does not take long: whom to strike is known before.
        self._looked_up = job_processes(station)
        folder = self._cluster.state_dir / "checkpoints"
        before = {*folder.glob("*/*")}
        while before.issuperset(folder.glob("*/*")):
            if self._leave.wait(_QUICK_POLL_S):
                return False
        return True

    @contextmanager
    def _doing(self, fault: Fault) -> Iterator[bool]:
        """The fault, inside the ``with`` block; gives whether there was anything that it could befall."""
        match fault.kind:
            case Kind.KILL:
                yield self._signal(fault, signal.SIGKILL)
            case Kind.STOP:
                yield self._signal(fault, signal.SIGSTOP)
                self._signal(fault, signal.SIGCONT)
            case Kind.PAUSE:
                namespace = self._host(fault.host).namespace
                yield send_signal(namespace, signal.SIGSTOP) > 0
                send_signal(namespace, signal.SIGCONT)
            case Kind.CUT:
                lab.cut(self._host(fault.host), [self._host(fault.other)])
                yield True
                lab.mend(self._plan, self._host(fault.host), [self._host(fault.other)])
            case Kind.ONE_WAY:
                lab.cut_one_way(self._host(fault.host), self._host(fault.other))
                yield True
                lab.mend(self._plan, self._host(fault.host), [self._host(fault.other)])
            case Kind.LOSS:
                lab.lose(self._host(fault.host), LOSS)
                yield True
                lab.lose(self._host(fault.host), 0.0)
            case Kind.RATE:
                number = fault.host or 0
                rate = self._plan.hosts[number].rate
                lab.set_rate(self._plan, number, rate * SLOWER)
                yield True
                lab.set_rate(self._plan, number, rate)
            case Kind.DISK:
                if self._disk is not None:
                    self._disk.fill()
                yield self._disk is not None
                if self._disk is not None:
                    self._disk.free()
            case Kind.MASTER:
                os.kill(self._cluster.processes()["master"], signal.SIGKILL)
                yield True
                self._cluster.restart_master()

    def _host(self, number: int | None) -> Station:
        return self._plan.host(number or 0)

    def _signal(self, fault: Fault, number: signal.Signals) -> bool:
        """Send a signal to the job process of the fault's host; whether there is one."""
        found, self._looked_up = self._looked_up or job_processes(self._host(fault.host)), []
        self._struck |= set(found)
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        return bool(found)


def job_processes(station: Station) -> list[int]:
    """Ids of the job processes of a host."""
    return [each for each in processes(station.namespace) if _JOB_PROCESS in words_of(each)]
