"""Threads: a refusal in time where the system gives no more of them.

gRPC starts some in every process, and where it gets none it waits for ever, or crashes, and says nothing of use. So
whoever is about to use it asks before.
"""

from __future__ import annotations

import threading

from dataflow.errors import ConfigError

OF_A_PROCESS = 8
"""Threads of a master, an agent or a client, on a machine with two cores; with more cores there are more."""

OF_A_JOB_PROCESS = 12
"""Threads of a job process with one compute task, likewise."""


def of_a_cluster(nodes: int) -> int:
    """Threads of a client, a master and so many agents, with what these fork from and a job process for each agent."""
    return 2 * OF_A_PROCESS + 1 + nodes * (OF_A_PROCESS + 1 + OF_A_JOB_PROCESS)


def require(count: int, what: str) -> None:
    """Nothing, if there could be so many more threads: they are started, and end at once.

    What would refuse them cannot be asked: limits of the user's processes, of a container and of memory all do.

    Args:
        count: how many.
        what: who needs them.

    Raises:
        ConfigError: the system gives fewer.
    """
    over = threading.Event()
    threads = [threading.Thread(target=over.wait, daemon=True) for _ in range(count)]
    started = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
    except RuntimeError as error:
        what = f"{what} needs {count} more threads, and the system gives {started}"
        fix = "raise the limit of processes, as with `ulimit -u`, or that of the container, or end other programs"
        raise ConfigError(what, fix=fix) from error
    finally:
        over.set()
        for thread in threads[:started]:
            thread.join()
