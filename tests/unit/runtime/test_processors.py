"""Threads that stay off a processor."""

import os
import threading
from collections.abc import Callable

from dataflow.runtime.processors import Bystander, current_processor


def on_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_bystander_avoid_allows_all_processors_but_the_last_one_named() -> None:
    allowed = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    def work() -> None:
        bystander = Bystander()
        for processor in sorted(allowed):
            bystander.avoid(processor)
            seen.append(os.sched_getaffinity(0))

    on_thread(work)
    assert seen == [allowed - {processor} or allowed for processor in sorted(allowed)]
    assert os.sched_getaffinity(0) == allowed  # of other threads


def test_current_processor_of_a_thread_that_may_use_one_is_that_one() -> None:
    seen: list[int] = []
    chosen = max(os.sched_getaffinity(0))

    def work() -> None:
        os.sched_setaffinity(0, {chosen})
        seen.append(current_processor())

    on_thread(work)
    assert seen == [chosen]
