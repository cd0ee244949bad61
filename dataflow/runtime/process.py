"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Environment of a job process: its task pools are its only threads that compute.

The kernels start none, but NumPy's products of matrices do, which operators may use, and so does PyTorch.
"""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent: process id of the parent; if it has ended before this call, this process exits at once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(1)


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group; one that has ended is no error."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
