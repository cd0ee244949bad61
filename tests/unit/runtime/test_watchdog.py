"""What the agent concludes from the page on which a job process notes what its threads do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dataflow.runtime.watchdog import FIRST_S, PAGE_NBYTES, Hang, TaskBoard, Watch


class Pair:
    """A board and the watch that reads it, with a clock that is turned by hand."""

    def __init__(self, floor_s: float | None = 10.0) -> None:
        page = bytearray(PAGE_NBYTES)
        self.board, self.watch = TaskBoard(page), Watch(page)
        self.board.watch(floor_s, {"source": ("source", "normalise", "compute")})
        self.now = 100.0
        self.look(0.0)

    def look(self, passed_s: float, *, stopped: bool = False) -> Hang | None:
        self.now += passed_s
        return self.watch.look(self.now, stopped=stopped)

    def until_hang(self, most_s: int = 1000) -> tuple[int, Hang] | None:
        """After how many seconds of looking once a second a task hangs."""
        for second in range(1, most_s + 1):
            hang = self.look(1.0)
            if hang is not None:
                return second, hang
        return None

    def run(self, busy_s: float, chain: str = "source", role: str = "shard") -> None:
        """Run a task to its end."""
        kind = self.board.kind(chain, role)
        self.board.begin(kind)
        self.board.end()
        self.board.learn(kind, busy_s)

    def begin(self, chain: str = "source", role: str = "shard") -> None:
        self.board.begin(self.board.kind(chain, role))
        self.look(0.0)


def on_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize(("before_s", "limit_s"), [(0.01, 10), (1.0, 10), (1.5, 15), (4.0, 40)])
def test_task_hangs_after_ten_times_the_longest_before_it_but_no_less_than_the_floor(
    before_s: float, limit_s: int
) -> None:
    pair = Pair()
    pair.run(before_s)
    pair.run(before_s / 2)
    pair.begin()
    found = pair.until_hang()
    assert found is not None
    second, hang = found
    assert (second, hang.limit_s) == (limit_s + 1, limit_s)
    assert hang.name == "operator source > normalise > compute (shard)"


def test_task_that_is_the_first_of_its_kind_has_longer() -> None:
    pair = Pair()
    pair.run(0.01, role="message")
    pair.begin(role="shard")
    found = pair.until_hang()
    assert found is not None
    assert found[0] == FIRST_S + 1


def test_tasks_that_end_never_hang_however_many_there_are() -> None:
    pair = Pair()
    for _ in range(100):
        pair.run(0.9)
        assert pair.look(0.9) is None
    assert pair.until_hang() is None


def test_task_of_another_thread_is_seen_beside_those_that_go_on() -> None:
    pair = Pair()
    pair.run(0.01)
    on_thread(pair.begin)
    for _ in range(10):
        pair.run(0.9)
        assert pair.look(1.0) is None
    assert pair.look(1.0) is not None


def test_seconds_in_which_the_process_was_stopped_do_not_count() -> None:
    pair = Pair()
    pair.run(0.01)
    pair.begin()
    for _ in range(100):
        assert pair.look(1.0, stopped=True) is None
    assert pair.until_hang() is not None


def test_seconds_in_which_nobody_looked_count_as_one() -> None:
    pair = Pair()
    pair.run(0.01)
    pair.begin()
    for _ in range(10):
        assert pair.look(3600.0) is None
    assert pair.look(1.0) is not None


def test_nothing_hangs_where_the_watchdog_is_off() -> None:
    pair = Pair(floor_s=None)
    pair.run(0.01)
    pair.begin()
    assert pair.until_hang() is None


def test_threads_beyond_the_pages_slots_are_not_watched_and_disturb_nobody() -> None:
    pair = Pair()
    pair.run(0.01)
    leave = threading.Event()

    def stay() -> None:
        pair.run(0.01)
        leave.wait()

    threads = [threading.Thread(target=stay) for _ in range(515)]
    for thread in threads:
        thread.start()
    on_thread(pair.begin)
    assert pair.until_hang(20) is None
    pair.begin()
    assert pair.until_hang(20) is not None
    leave.set()
    for thread in threads:
        thread.join()


def test_engine_that_does_not_come_back_hangs_and_one_that_does_never() -> None:
    pair = Pair()
    for _ in range(200):
        pair.board.enter()
        pair.board.leave()
        assert pair.look(1.0) is None
    pair.board.enter()
    found = pair.until_hang()
    assert found is not None
    assert (found[0], found[1].name) == (FIRST_S + 2, "the operator whose ready predicate the engine asks")


def test_progress_moves_with_every_bump() -> None:
    pair = Pair()
    pair.board.bump()
    pair.board.bump()
    assert pair.watch.progress == 2
