"""Keeps the checkpoints of a running job off the event loop: a disk that is slow, full or gone holds nothing up.

Invariant: everything but the store happens on the event loop; the store is used by one thread only. What waits for it
is bounded: no file is begun beyond `QUEUED_NBYTES`, and each node sends one file after the other.
"""

from __future__ import annotations

import asyncio
import math
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from queue import SimpleQueue

from dataflow.runtime.checkpoint_store import CheckpointStore
from dataflow.transport.generated import control_pb2 as pb

QUEUED_NBYTES = 256 << 20
"""While more bytes wait for the disk, no file is begun."""

SLOW_S = 5.0
"""While something of a node has waited longer for the disk, in seconds, no file of that node is begun. It may wait so
long, as a master that was away is told at once of all that was kept meanwhile, which is no fault of the disk."""

AGAIN_S = 60.0
"""Seconds in which nothing was left out after which it is told again that something is."""

_Work = Callable[[CheckpointStore], None]


class CheckpointKeeper:
    """The checkpoints of one job. Make it on the event loop.

    Args:
        make_store: makes the store, given what it warns with; called on the store's thread.
        warn: told, on the event loop, what is wrong.
    """

    def __init__(
        self, make_store: Callable[[Callable[[str], None]], CheckpointStore], warn: Callable[[str], None]
    ) -> None:
        self._make_store, self._tell = make_store, warn
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._queued_nbytes = 0
        self._taking: dict[int, int] = {}
        self._waiting_since_s: defaultdict[int, deque[float]] = defaultdict(deque)
        self._left_out: dict[int, int] = {}
        self._left_out_s = -math.inf
        self._is_broken = False
        self._done = asyncio.Event()
        threading.Thread(target=self._run, name="checkpoints", daemon=True).start()

    def take(self, node: int, chunk: pb.CheckpointChunk) -> None:
        """Take the next part of a node's file, or leave the file out if too much waits, or for too long."""
        number, nbytes, now_s = chunk.number, len(chunk.data), self._loop.time()
        if self._is_broken or self._left_out.get(node) == number:
            return
        if self._taking.get(node) != number:
            if self._is_behind(node, now_s):
                self._left_out[node] = number
                if now_s > self._left_out_s + AGAIN_S:
                    self._tell(f"checkpoint {number} is left out: the disk is too slow; the job goes on without it")
                self._left_out_s = now_s
                return
            self._taking[node] = number
        self._waiting_since_s[node].append(now_s)
        self._queued_nbytes += nbytes

        def write(store: CheckpointStore) -> None:
            store.write(node, number, chunk.data, last=chunk.last)
            self._call(self._written, node, nbytes)

        self._work.put(write)

    def _is_behind(self, node: int, now_s: float) -> bool:
        since_s = self._waiting_since_s[node]
        return self._queued_nbytes > QUEUED_NBYTES or (bool(since_s) and now_s > since_s[0] + SLOW_S)

    def leave(self, node: int) -> None:
        """A node has left the job: checkpoints are whole without it from now on."""
        self._taking.pop(node, None)
        self._work.put(lambda store: store.leave(node))

    def join(self, node: int) -> None:
        """A node is there again: checkpoints are whole with it only."""
        self._work.put(lambda store: store.join(node))

    def close(self) -> None:
        """Finish what has come, and leave nothing behind that is not whole; does not wait for that."""
        self._work.put(CheckpointStore.close)
        self._work.put(None)

    async def closed(self) -> None:
        """Wait until all is done that was asked for before `close`: on a disk that hangs for ever."""
        await self._done.wait()

    def _written(self, node: int, nbytes: int) -> None:
        self._queued_nbytes -= nbytes
        self._waiting_since_s[node].popleft()

    def _break(self, why: str) -> None:
        self._is_broken = True
        self._tell(f"no more checkpoints are kept: {why}; the job goes on without them")

    def _run(self) -> None:
        try:
            store = self._make_store(lambda text: self._call(self._tell, text))
            while (work := self._work.get()) is not None:
                work(store)
        except Exception as error:  # whatever it is, nobody else would tell of it
            traceback.print_exception(error)
            self._call(self._break, f"{type(error).__name__}: {error}")
        finally:
            self._call(self._done.set)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)
