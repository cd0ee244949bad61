"""A process whose share is one processor's time at most."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from dataflow.clock import SystemClock
from dataflow.runtime.one_processor import OneProcessor


class Slow(SystemClock):
    """A clock on which time goes by only when it is told to."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s


@pytest.fixture
def waiting() -> Iterator[threading.Thread]:
    """Another thread of this process."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield thread
    over.set()
    thread.join()


def compute(seconds: float) -> None:
    """Take that much of the processor."""
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass


def test_look_keeps_all_threads_together_while_the_share_is_used_up(waiting: threading.Thread) -> None:
    clock, allowed = Slow(), os.sched_getaffinity(0)
    kept, other = OneProcessor(0.5, clock), waiting.native_id
    assert other is not None
    compute(0.05)
    clock.time_s = 0.1
    kept.look()
    assert kept.processor in allowed
    assert os.sched_getaffinity(0) == os.sched_getaffinity(other) == {kept.processor}

    compute(0.05)
    clock.time_s = 0.2
    before = kept.processor
    kept.look()
    assert kept.processor == before

    clock.time_s = 100.2
    kept.look()
    assert kept.processor is None
    assert os.sched_getaffinity(0) == os.sched_getaffinity(other) == allowed


def test_look_at_a_process_that_waits_lets_it_run_anywhere() -> None:
    clock, allowed = Slow(), os.sched_getaffinity(0)
    kept = OneProcessor(1.0, clock)
    clock.time_s = 1000.0
    kept.look()
    assert kept.processor is None
    assert os.sched_getaffinity(0) == allowed


def test_release_gives_all_processors_back(waiting: threading.Thread) -> None:
    clock, allowed = Slow(), os.sched_getaffinity(0)
    kept, other = OneProcessor(0.5, clock), waiting.native_id
    assert other is not None
    compute(0.05)
    clock.time_s = 0.05
    kept.look()
    assert len(os.sched_getaffinity(other)) == 1
    kept.release()
    assert os.sched_getaffinity(0) == os.sched_getaffinity(other) == allowed
