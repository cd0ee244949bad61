"""What a message costs the nodes at its two ends: measured between two processes of this machine, over gRPC.

Each end is a process of its own, as on a cluster: two ends in one would wake each other for less. Both send to the
other at a steady pace, each message from a thread that hands it to the event loop, as a task pool does, so that every
wake-up on its way is paid for, which in a burst many messages would share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dataflow.clock import SystemClock
from dataflow.errors import JobFailedError
from dataflow.message import Message
from dataflow.runtime.starting import ONE_THREAD, PREFERRED, module_command
from dataflow.transport.grpc_connection import GrpcNetwork
from dataflow.transport.links import Links

LEAST_NBYTES: Final = 64 << 10
"""Smaller messages say nothing about what a byte costs; they are measured with none."""

MOST_NBYTES: Final = 1 << 20
"""Larger messages would not keep the pace; they cost in proportion."""

PACE_S: Final = 0.004
"""Seconds between two messages of an end."""

_ROUNDS: Final = 6
"""Rounds of all sizes: the median of a size's is not the one that something else disturbed."""

_MESSAGES: Final = 8
"""Messages from either end in a round of a size; those of a first round, in which buffers grow, do not count."""

_PATIENCE_S: Final = 30.0

_OWN: Final = {**ONE_THREAD, "GRPC_VERBOSITY": "NONE"}
"""Of both ends: that of job processes, but silent about the other end's going first."""


@dataclass(frozen=True, slots=True)
class _Probe(Message):
    """A message of some size."""

    data: npt.NDArray[np.uint8]


def measure_connection(nbytes: int) -> tuple[float, float]:
    """Seconds of processor time that a node needs to send or to receive a message, and those for each of its bytes.

    Sending and receiving are taken to cost the same. Takes a second or so.

    Args:
        nbytes: size of what is sent, besides empty messages; at least `LEAST_NBYTES` and at most `MOST_NBYTES` of it.

    Raises:
        JobFailedError: the two ends cannot talk to each other.
    """
    measured = (0, max(LEAST_NBYTES, min(nbytes, MOST_NBYTES)))
    listed = ",".join(map(str, measured))
    with ExitStack() as stack:
        ends = [stack.enter_context(_started(end, listed)) for end in (0, 1)]
        for end in ends:
            stack.callback(end.kill)
        addresses = [_first_line(end) for end in ends]
        for end, address in zip(ends, reversed(addresses), strict=True):
            _say(end, address)
        said = [_first_line(end) for end in ends]
    both = [dict(json.loads(text)) for text in said]
    return fit_costs({size: fmean(end[str(size)] for end in both) for size in measured})


def fit_costs(seconds: Mapping[int, float]) -> tuple[float, float]:
    """The line by least squares through seconds by size, neither of its two numbers below zero: offset and slope.

    Args:
        seconds: of processor time for a message at one end, by its bytes; of two sizes at least.
    """
    sizes, times = np.array(sorted(seconds), float), np.array([seconds[size] for size in sorted(seconds)])
    away = sizes - sizes.mean()
    byte_s = max(0.0, float(away @ times / (away @ away)))
    message_s = float(times.mean() - byte_s * sizes.mean())
    if message_s < 0:
        return 0.0, float(sizes @ times / (sizes @ sizes))
    return message_s, byte_s


def _started(end: int, sizes: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*module_command("dataflow.runtime.connection_costs"), str(end), sizes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**PREFERRED, **os.environ, **_OWN},
    )


def _first_line(end: subprocess.Popen[str]) -> str:
    """The next line that an end prints."""
    assert end.stdout is not None
    line = end.stdout.readline()
    if not line:
        what = "what a message costs cannot be measured: one of two processes that exchange some has ended"
        raise JobFailedError(what, got=f"exit status {end.wait()}", fix="see above, or use --compute constant or gamma")
    return line.strip()


def _say(end: subprocess.Popen[str], line: str) -> None:
    assert end.stdin is not None
    end.stdin.write(f"{line}\n")
    end.stdin.flush()


class _End:
    """One end: sends to the other, and counts what comes from it."""

    def __init__(self, network: GrpcNetwork, number: int) -> None:
        self._peer, self._loop, self._clock = 1 - number, asyncio.get_running_loop(), SystemClock()
        self._awaited, self._complete = 0, asyncio.Event()
        self.links = Links(
            network,
            node=number,
            job="",
            plan_hash="",
            incarnation=0,
            edge_types={0: _Probe},
            on_message=self._arrived,
            on_end=lambda source, edge: None,
            on_credit=lambda peer, edge, nbytes: None,
            on_lost=lambda peer, reason: None,
            rng=np.random.default_rng(number),
        )

    async def round(self, nbytes: int) -> float:
        """Seconds of this process for a message at this end, of some that either end sends the other."""
        message = _Probe(np.zeros(nbytes, np.uint8))
        self._expect(_MESSAGES)
        before_s = _processor_s()
        threading.Thread(target=self._send, args=(message,), daemon=True).start()
        await self._complete.wait()
        return (_processor_s() - before_s) / (2 * _MESSAGES)

    def _send(self, message: _Probe) -> None:
        for _ in range(_MESSAGES):
            self._clock.sleep(PACE_S)
            self._loop.call_soon_threadsafe(self.links.send, self._peer, 0, message)

    def _arrived(self, source: int, edge: int, _: Message, nbytes: int) -> None:
        self.links.grant(source, edge, nbytes)
        self._expect(-1)

    def _expect(self, messages: int) -> None:
        """Wait for so many more; the other end may be ahead by some."""
        self._awaited += messages
        if self._awaited > 0:
            self._complete.clear()
        else:
            self._complete.set()


def _processor_s() -> float:
    """Seconds of processor time of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _exchange(number: int, sizes: Iterable[int]) -> None:
    """Be one end: print the address, read the other's, and print the seconds by size."""
    network = GrpcNetwork()
    end = _End(network, number)
    print(await end.links.listen(), flush=True)
    peer = await asyncio.to_thread(sys.stdin.readline)
    async with asyncio.timeout(_PATIENCE_S):
        await end.links.connect({1 - number: peer.strip()})
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        for counts in [False] + _ROUNDS * [True]:
            for size, times in seconds.items():
                took_s = await end.round(size)
                if counts:
                    times.append(took_s)
        await end.links.drain()
    print(json.dumps({size: median(times) for size, times in seconds.items()}), flush=True)
    await asyncio.to_thread(sys.stdin.read)  # the other end may still be at it


def main() -> None:
    """Run as one of the two ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("end", type=int, help="0 or 1")
    parser.add_argument("sizes", help="bytes of messages, separated by commas")
    options: Any = parser.parse_args()
    asyncio.run(_exchange(options.end, [int(size) for size in options.sizes.split(",")]))


if __name__ == "__main__":
    main()
