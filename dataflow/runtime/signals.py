"""What becomes of a command that is told to end by whom else than Ctrl-C: a service manager, a terminal that closes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dataflow.errors import ToldToEnd

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Leave the ``with`` block as by `sys.exit` when this process is told to end by SIGTERM or SIGHUP.

    The first signal is the last: none breaks off what is done on the way out. A signal that somebody handles already is
    theirs, and one that is ignored, as under ``nohup``, stays so. On any thread but the main one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mine = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]

    def leave(number: int, _frame: object) -> None:
        for each in mine:
            signal.signal(each, signal.SIG_IGN)
        raise ToldToEnd(128 + number)

    for number in mine:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
