"""Commands that are told to end take back what they did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from dataflow.runtime.signals import ended_in_order

PROGRAM = """
import os, signal, sys
from dataflow.runtime.signals import ended_in_order
with ended_in_order():
    try:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        print("goes on")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)  # once more, on the way out
        os.kill(os.getpid(), signal.SIGHUP)
        print("taken back")
"""


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_process_told_to_end_takes_back_what_it_did_however_often_it_is_told(name: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "taken back\n", "")


def test_signal_that_is_ignored_stays_so_and_one_that_is_handled_is_left_to_its_handler() -> None:
    handled = list[int]()
    before = [
        (signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN)),
        (signal.SIGTERM, signal.signal(signal.SIGTERM, lambda number, _frame: handled.append(number))),
    ]
    try:
        with ended_in_order():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
        assert handled == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def test_signals_are_as_they_were_afterwards_and_on_another_thread_all_the_time() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ended_in_order():
        pass
    assert signal.getsignal(signal.SIGTERM) == before
    entered = list[bool]()

    def enter() -> None:
        with ended_in_order():
            entered.append(signal.getsignal(signal.SIGTERM) == before)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]
