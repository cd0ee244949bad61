"""What processes of ours are started with: their command, and what their environment says."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Environment of a job process: its task pools are its only threads that compute.

The kernels start none, but NumPy's products of matrices do, which operators may use, and so does PyTorch.
"""

FEW_WAKES = {
    "GRPC_EXPERIMENTS": "tcp_frame_size_tuning,tcp_rcv_lowat,-event_engine_client,-event_engine_listener",
}
"""Environment of a job process: gRPC wakes few threads for a message (docs/decisions/0021-few-packets.md).

It asks the kernel to be woken once most of a message is there, and not for nearly every packet of a slow link: 17 times
for a message of 79 kB at 100 Mbit/s. And who waits for a message reads it, where gRPC's event engine has a thread of
its own read it and hand it over.
"""

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 20)}
"""Environment of a job process: glibc keeps up to 32 MiB of an arena for blocks of up to 32 MiB to come.

Otherwise it gives packets back to the kernel as soon as two or three are free together, and the pages of the next ones
are zeroed again: a third of what a stream of large messages costs (docs/decisions/0021-few-packets.md).
"""

PREFERRED = FEW_WAKES | KEEP_MEMORY
"""Environment of a job process, as far as the user's own says nothing else."""


def module_command(module: str) -> tuple[str, ...]:
    """The command that starts a module of ours: what lies in the current folder shadows nothing that it imports.

    But where that folder has this very package it stays the first to be searched, so that processes of a checkout run
    its sources, and not those of another one that is installed.
    """
    try:
        in_checkout = Path().resolve() == _ROOT
    except OSError:  # the folder is gone
        in_checkout = False
    return (sys.executable, *(() if in_checkout else ("-P",)), "-m", module)
