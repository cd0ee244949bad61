"""The plan of a chaos run: which faults befall a lab, and when. A pure function of the seed.

Invariant: faults do not overlap, so that what a job tells can be set against the one that came before; and no host is
struck more often than a job starts its node again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from dataflow.errors import ConfigError

MOST_DEATHS: Final = 3
"""Faults that may cost a node its life, on each host: so often it is started again."""

FIRST_S, LAST_S = 4.0, 2.0
"""Seconds without a fault after a job's start, and before the end of a plan."""

LOSS: Final = 0.05
"""Share of the packets that are lost."""

SLOWER: Final = 0.1
"""Share of its rate that a host keeps."""

_PAUSES: Final = (1.0, 6.0)


class Kind(StrEnum):
    """What happens. Each but a kill is taken back when its time is over."""

    KILL = "kill"
    """The job process of a host is ended with SIGKILL."""
    STOP = "stop"
    """The job process of a host is stopped, and goes on."""
    PAUSE = "pause"
    """All processes of a host are stopped, its agent too, and go on."""
    CUT = "cut"
    """Nothing passes between two hosts."""
    ONE_WAY = "one-way"
    """Nothing passes from a host to another."""
    LOSS = "loss"
    """A host loses packets."""
    RATE = "rate"
    """A host's bandwidth falls."""
    DISK = "disk"
    """The disk with the checkpoints is full."""
    MASTER = "master"
    """The master is ended with SIGKILL, and started again."""


DURATIONS: Final = {
    Kind.STOP: (0.2, 6.0),
    Kind.PAUSE: (0.2, 6.0),
    Kind.CUT: (0.2, 6.0),
    Kind.ONE_WAY: (0.2, 6.0),
    Kind.LOSS: (3.0, 8.0),
    Kind.RATE: (3.0, 8.0),
    Kind.DISK: (3.0, 6.0),
    Kind.MASTER: (0.5, 5.0),
}
"""Seconds that a fault lasts, at least and at most."""

DEADLY: Final = frozenset({Kind.KILL, Kind.STOP, Kind.PAUSE, Kind.CUT, Kind.ONE_WAY})
"""Faults that may cost a node its place in the job."""

_BETWEEN_HOSTS: Final = frozenset({Kind.CUT, Kind.ONE_WAY})
_NOWHERE: Final = frozenset({Kind.DISK, Kind.MASTER})


class Since(StrEnum):
    """The moment that the seconds of a fault are counted from."""

    RUN = "run"
    """The job runs."""
    PROCESS = "process"
    """Its host has a job process that no fault has struck yet, be the job deployed, or its node be coming back."""
    CHECKPOINT = "checkpoint"
    """The first checkpoint that is begun, at the master, so many seconds after the job runs; it comes at once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that befalls a lab.

    Args:
        at_s: seconds from a moment until it begins.
        kind: what it is.
        for_s: seconds that it lasts; 0 for a kill.
        host: number of the host; None where it befalls none.
        other: that of the other host of a link, in the direction of a cut.
        since: which moment that is.
    """

    at_s: float
    kind: Kind
    for_s: float = 0.0
    host: int | None = None
    other: int | None = None
    since: Since = field(default=Since.RUN, kw_only=True)

    @property
    def hosts(self) -> tuple[int, ...]:
        """Those whose nodes it may cost their place."""
        return tuple(host for host in (self.host, self.other) if host is not None) if self.kind in DEADLY else ()

    def __str__(self) -> str:
        """What happens where and for how long, in few words."""
        arrow = {Kind.CUT: "-", Kind.ONE_WAY: "->"}.get(self.kind, "")
        place = "" if self.host is None else f" {self.host}{arrow}{'' if self.other is None else self.other}"
        return f"{self.kind}{place}" + (f" for {self.for_s:.1f} s" if self.for_s else "")


def plan_faults(seed: int, hosts: int, seconds: float, kinds: tuple[Kind, ...] = tuple(Kind)) -> tuple[Fault, ...]:
    """The faults of a run, in their order; the same for the same arguments, on every machine.

    Args:
        seed: decides what happens.
        hosts: how many there are.
        seconds: the last fault is over `LAST_S` before.
        kinds: what may happen.

    Raises:
        ConfigError: nothing can happen in so short a time, or to so few hosts.
    """
    if hosts < 2 and kinds and _BETWEEN_HOSTS.issuperset(kinds):
        what = f"a fault between two hosts needs two: {', '.join(kinds)}"
        raise ConfigError(what, got=hosts, fix="use --nodes 2 or more, or other faults")
    random = Random(seed)
    deaths = [0] * hosts
    faults: list[Fault] = []
    at_s = FIRST_S
    while possible := [kind for kind in kinds if _can_happen(kind, deaths)]:
        kind = random.choice(possible)
        candidates = [host for host in range(hosts) if kind not in DEADLY or deaths[host] < MOST_DEATHS]
        struck = random.sample(candidates, 0 if kind in _NOWHERE else 2 if kind in _BETWEEN_HOSTS else 1)
        least_s, most_s = DURATIONS.get(kind, (0.0, 0.0))
        for_s = round(random.uniform(least_s, most_s), 1)
        if not at_s + for_s + LAST_S <= seconds:  # which NaN is not, either
            break
        fault = Fault(round(at_s, 1), kind, for_s, *struck)
        for host in fault.hosts:
            deaths[host] += 1
        faults.append(fault)
        at_s += for_s + random.uniform(*_PAUSES)
    if not faults:
        raise ConfigError(what="nothing can happen to a job in so short a time", got=seconds, fix="say --seconds 60")
    return tuple(faults)


def _can_happen(kind: Kind, deaths: list[int]) -> bool:
    free = sum(count < MOST_DEATHS for count in deaths)
    return free >= (2 if kind in _BETWEEN_HOSTS else 1) if kind in DEADLY else True
