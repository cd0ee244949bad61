"""The watchdog: a page of memory on which a job process notes what its threads do, and from which its agent reads that.

The agent sees a task that hangs even while that holds the interpreter. It counts seconds by looking, so a machine that
sleeps, and an agent or a process that was stopped, do not make a task look long. Who waits for a message runs no task.

Layout, in words of 8 bytes: the progress counter, the number of slots in use, then slots of three words: how often
their thread has begun or ended a task, which kind of task it is, and its limit in milliseconds (0: none). The first
slot is the engine's, at which one thread is at a time. Behind the slots are the names of the kinds.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST_S = 300.0
"""Seconds that the first task of a kind may run: it may compile."""

TIMES = 10.0
"""How many times as long as the longest task of its kind before it one may run."""

_SLOTS, _SLOT_WORDS, _HEAD_WORDS = 512, 3, 2
_KINDS, _NAME_NBYTES = 256, 128
_NAMES_AT = 8 * (_HEAD_WORDS + (_SLOTS + 1) * _SLOT_WORDS)
PAGE_NBYTES = _NAMES_AT + _KINDS * _NAME_NBYTES
"""Size of the page."""

_LOOK_S = 1.0
"""Seconds that count at most from one look to the next: in a longer while the agent itself did not run."""


class Kind:
    """Tasks of one role of one chain.

    Args:
        number: of its name on the page.
        limit_ms: how long a task may run, in milliseconds; 0: as long as it likes.
    """

    __slots__ = ("limit_ms", "longest_s", "number")

    def __init__(self, number: int, limit_ms: int) -> None:
        self.number, self.limit_ms, self.longest_s = number, limit_ms, 0.0


class TaskBoard:
    """The page as the job process writes it; every thread writes a slot of its own.

    Args:
        page: `PAGE_NBYTES` of zeros.
        floor_s: seconds that any task may run; None: no task hangs, however long it runs.
    """

    def __init__(self, page: mmap.mmap | bytearray, floor_s: float | None = None) -> None:
        self._bytes = memoryview(page)
        self._words = self._bytes[:_NAMES_AT].cast("Q")
        self._floor_s = floor_s
        self._titles: dict[str, str] = {}
        self._slots: dict[int, int] = {}
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._lock = threading.Lock()
        self._words[1] = 1

    @classmethod
    def unread(cls) -> TaskBoard:
        """A page that nobody looks at."""
        return cls(bytearray(PAGE_NBYTES))

    def bump(self) -> None:
        """Count something that happened, on any thread; what counts is that it moves, so a lost update is no matter."""
        self._words[0] += 1

    def watch(self, floor_s: float | None, chains: Mapping[str, Sequence[str]]) -> None:
        """Set `floor_s`, and the operators of every chain, before any task runs."""
        self._floor_s = floor_s
        self._titles = {head: " > ".join(operators) for head, operators in chains.items()}
        engine = self._kind_of(("", ""), "the operator whose ready predicate the engine asks")
        self._words[_HEAD_WORDS + 1], self._words[_HEAD_WORDS + 2] = engine.number, engine.limit_ms

    def enter(self) -> None:
        """Note that somebody gives the engine an event, with which it may ask operators whether they are ready."""
        self._words[_HEAD_WORDS] += 1

    def leave(self) -> None:
        """Note that the engine has taken the event in."""
        self._words[_HEAD_WORDS] += 1

    def kind(self, chain: str, role: str) -> Kind:
        """The kind of a task."""
        key = (chain, role)
        return self._kinds.get(key) or self._kind_of(key, f"operator {self._titles.get(chain, chain)} ({role})")

    def begin(self, kind: Kind) -> None:
        """Note that the calling thread begins a task."""
        slot = self._slots.get(threading.get_ident()) or self._add_slot()
        words = self._words
        words[slot + 1], words[slot + 2] = kind.number, kind.limit_ms
        words[slot] += 1

    def end(self) -> None:
        """Note that the calling thread has ended its task."""
        self._words[self._slots[threading.get_ident()]] += 1

    def learn(self, kind: Kind, busy_s: float) -> None:
        """Note how long a task has taken."""
        if self._floor_s is not None and (busy_s > kind.longest_s or not kind.longest_s):
            kind.longest_s = max(busy_s, 1e-9)
            kind.limit_ms = int(1000 * max(self._floor_s, TIMES * busy_s))

    def _kind_of(self, key: tuple[str, str], title: str) -> Kind:
        with self._lock:
            number = min(len(self._kinds), _KINDS - 1)
            limit_ms = 0 if self._floor_s is None else int(1000 * max(self._floor_s, FIRST_S))
            name = title.encode()[:_NAME_NBYTES]
            at = _NAMES_AT + number * _NAME_NBYTES
            self._bytes[at : at + len(name)] = name
            return self._kinds.setdefault(key, Kind(number, limit_ms))

    def _add_slot(self) -> int:
        with self._lock:
            used = int(self._words[1])
            slot = _HEAD_WORDS + _SLOT_WORDS * used  # behind the last is one that nobody reads
            self._slots[threading.get_ident()] = slot
            self._words[1] = min(used + 1, _SLOTS)
            return slot


@dataclass(frozen=True, slots=True)
class Hang:
    """A task that runs for too long.

    Args:
        name: the operators of its chain, and its role.
        seconds: for which it was seen to run.
        limit_s: for which it may.
    """

    name: str
    seconds: float
    limit_s: float

    def __str__(self) -> str:
        return (
            f"{self.name} hangs: its task has run for {self.seconds:.1f} s, {self.limit_s:g} s is its limit "
            "(10 times the longest before it, but no less than watchdog); the stacks of all threads are in the log"
        )


class Watch:
    """The page as the agent reads it.

    Args:
        page: see `TaskBoard`.
    """

    def __init__(self, page: mmap.mmap | bytearray) -> None:
        self._bytes = memoryview(page)
        self._words = self._bytes[:_NAMES_AT].cast("Q")
        self._seen: dict[int, tuple[int, float]] = {}
        self._looked_s: float | None = None

    @property
    def progress(self) -> int:
        """How much has happened."""
        return int(self._words[0])

    def look(self, now: float, *, stopped: bool) -> Hang | None:
        """A task that has been seen to run for longer than it may.

        Args:
            now: seconds on a clock that never goes back.
            stopped: whether the process does not run at all, because somebody has stopped it.
        """
        passed_s = 0.0 if stopped or self._looked_s is None else min(now - self._looked_s, _LOOK_S)
        self._looked_s = now
        for slot in range(_HEAD_WORDS, _HEAD_WORDS + _SLOT_WORDS * int(self._words[1]), _SLOT_WORDS):
            count, kind, limit_ms = (int(word) for word in self._words[slot : slot + _SLOT_WORDS])
            known, seconds = self._seen.get(slot, (0, 0.0))
            seconds = seconds + passed_s if count == known else 0.0
            self._seen[slot] = (count, seconds)
            if count % 2 and 0 < limit_ms < 1000 * seconds:
                return Hang(self._name(kind), seconds, limit_ms / 1000)
        return None

    def close(self) -> None:
        """Let go of the page."""
        self._words.release()
        self._bytes.release()

    def _name(self, kind: int) -> str:
        at = _NAMES_AT + min(kind, _KINDS - 1) * _NAME_NBYTES
        return bytes(self._bytes[at : at + _NAME_NBYTES]).rstrip(b"\0").decode(errors="replace")
