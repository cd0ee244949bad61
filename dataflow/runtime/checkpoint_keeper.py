"""Keeps the checkpoints of a running job off the event loop: a disk that is slow, full or gone holds nothing up.

Invariant: everything but the store happens on the event loop; the store is used by one thread only. What waits for it
is bounded: one file of each node, and none that would begin beyond `QUEUED_NBYTES`. So what is kept is of now, and of
the same moment on all nodes, however often it is due.
"""

from __future__ import annotations

import asyncio
import math
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue

from dataflow.runtime.checkpoint_store import CheckpointStore
from dataflow.transport.generated import control_pb2 as pb

QUEUED_NBYTES = 256 << 20
"""While more bytes wait for the disk, no file is begun."""

SLOW_S = 5.0
"""A disk is called slow if a file is left out while that before has waited longer, in seconds. One that has waited less
may come of a master that was away, and is told at once of all that was kept meanwhile."""

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
        self._writing: dict[int, tuple[int, float]] = {}
        self._left_out: dict[int, int] = {}
        self._slow_s = -math.inf
        self._is_broken = False
        self._done = asyncio.Event()
        threading.Thread(target=self._run, name="checkpoints", daemon=True).start()

    def take(self, node: int, chunk: pb.CheckpointChunk) -> None:
        """Take the next part of a node's file, or leave the file out if the disk has not come to the one before."""
        number, nbytes, now_s = chunk.number, len(chunk.data), self._loop.time()
        if self._is_broken or self._left_out.get(node) == number:
            return
        before, since_s = self._writing.get(node, (number, now_s))
        too_much = node not in self._writing and self._queued_nbytes > QUEUED_NBYTES
        if before != number or too_much:
            self._left_out[node] = number
            if too_much or now_s > since_s + SLOW_S:
                self._tell_slow(number, now_s)
            return
        self._writing[node] = (number, now_s)
        self._queued_nbytes += nbytes

        def write(store: CheckpointStore) -> None:
            store.write(node, number, chunk.data, last=chunk.last)
            self._call(self._written, node, nbytes, chunk.last)

        self._work.put(write)

    def _tell_slow(self, number: int, now_s: float) -> None:
        if now_s > self._slow_s + AGAIN_S:
            self._tell(f"checkpoint {number} is left out: the disk is too slow; the job goes on without it")
        self._slow_s = now_s

    def leave(self, node: int) -> None:
        """A node has left the job: checkpoints are whole without it from now on."""
        self._writing.pop(node, None)
        self._work.put(lambda store: store.leave(node))

    def join(self, node: int) -> None:
        """A node is there again: checkpoints are whole with it only."""
        self._work.put(lambda store: store.join(node))

    def close(self) -> None:
        """Finish what has come, and leave nothing behind that is not whole; does not wait for that."""
        self._work.put(CheckpointStore.close)
        self._work.put(None)

    @property
    def is_done(self) -> bool:
        """Whether all is done that was asked for before `close`."""
        return self._done.is_set()

    async def closed(self) -> None:
        """Wait until all is done that was asked for before `close`: on a disk that hangs for ever."""
        await self._done.wait()

    def _written(self, node: int, nbytes: int, last: bool) -> None:
        self._queued_nbytes -= nbytes
        if last:
            self._writing.pop(node, None)

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
