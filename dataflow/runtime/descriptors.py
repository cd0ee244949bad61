"""File descriptors: as many as the system grants, and a refusal in time where those will not do.

Whoever runs out of them in the middle fails in some place that has nothing to do with it, so everything that will need
many asks before it starts.
"""

from __future__ import annotations

import os
import resource

from dataflow.errors import ConfigError

MOST = 65_536
"""Descriptors that are asked for."""

OF_A_MASTER = 24
"""Descriptors of a master without nodes, with those of clients that come and go."""

OF_AN_AGENT = 16
"""Descriptors of an agent without jobs."""

OF_A_JOB = 12
"""Descriptors of an agent for a job, those included that are open only while its process starts."""

OF_A_NODE = 6
"""Descriptors of a master for a node, a client of its job included."""

OF_A_PEER = 3
"""Descriptors of a job process for a peer: two connections, and a third where one is made anew."""

OF_OPERATORS = 10
"""Descriptors of a job process for the files of operators."""


def raise_limit() -> None:
    """Let this process have as many descriptors as it may, up to `MOST`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def require(count: int, what: str) -> None:
    """Nothing, if so many descriptors can be opened.

    Args:
        count: how many.
        what: who needs them.

    Raises:
        ConfigError: there are fewer.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) - 1  # without the one that reads this
    if limit != resource.RLIM_INFINITY and limit - used < count:
        what = f"{what} needs {count} more file descriptors, and has {used} of {limit} open"
        raise ConfigError(what, fix=f"raise the limit, as with `ulimit -n {max(1024, 2 * (used + count))}`")
