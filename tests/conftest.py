"""How every test finds its process, however the suite was started."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """End by SIGHUP, and have children that do: a suite that `nohup` starts would ignore it, and theirs with it."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
