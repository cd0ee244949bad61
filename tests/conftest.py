"""How every test finds its process, however the suite was started."""

from __future__ import annotations

import gc
import os
import signal

from dataflow.runtime.starting import ONE_THREAD


def pytest_configure() -> None:
    """End by SIGHUP, and have children that do: a suite that `nohup` starts would ignore it, and theirs with it.

    Tests multiply matrices in one thread, as jobs do: several would mostly wait for each other, and spin meanwhile.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.update(ONE_THREAD)


def pytest_collection_finish() -> None:
    """Leave what the suite has imported out of collections, of which each simulation makes a full one."""
    gc.collect()
    gc.freeze()
