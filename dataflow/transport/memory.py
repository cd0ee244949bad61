"""Connections inside one process: the transport of tests and of nodes that share a process.

Invariant: like a socket, a connection holds a bounded number of packets, and closing it loses those not yet read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection

from dataflow.transport.base import Accept, Connection, ConnectionLostError, serve

CAPACITY = 16
"""Packets that wait in one direction of a connection before `write` waits."""


class MemoryNetwork:
    """A network whose addresses are ``memory:0``, ``memory:1``, ...; many nodes may listen on one object."""

    def __init__(self) -> None:
        self._listeners: dict[str, Accept] = {}
        self._serving: dict[asyncio.Task[None], _MemoryConnection] = {}

    async def listen(self, accept: Accept) -> str:
        """Accept connections; see `Network.listen`."""
        address = f"memory:{len(self._listeners)}"
        self._listeners[address] = accept
        return address

    async def dial(self, address: str) -> Connection:
        """Connect to a listener of this object; see `Network.dial`."""
        accept = self._listeners.get(address)
        if accept is None:
            what = f"nobody listens at {address}"
            raise ConnectionLostError(what)
        there, back = _Pipe(), _Pipe()
        accepted = _MemoryConnection(there, back)
        task = asyncio.create_task(serve(accept, accepted))
        self._serving[task] = accepted
        task.add_done_callback(self._serving.pop)
        return _MemoryConnection(back, there)

    def busy_s(self, addresses: Collection[str]) -> dict[str, float]:
        """Nothing: no kernel is asked; see `Network.busy_s`."""
        del addresses
        return {}

    async def close(self) -> None:
        """Forget the listeners and end every connection."""
        self._listeners.clear()
        for task, connection in tuple(self._serving.items()):
            await connection.close()
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


class _Pipe:
    """One direction of a connection."""

    def __init__(self) -> None:
        self._packets: deque[bytes] = deque()
        self._open = True
        self._readable, self._writable = asyncio.Event(), asyncio.Event()

    async def write(self, packet: bytes) -> None:
        while self._open and len(self._packets) >= CAPACITY:
            self._writable.clear()
            await self._writable.wait()
        self._check_open()
        self._packets.append(packet)
        self._readable.set()

    async def read(self) -> bytes:
        while self._open and not self._packets:
            self._readable.clear()
            await self._readable.wait()
        self._check_open()
        self._writable.set()
        return self._packets.popleft()

    def close(self) -> None:
        self._open = False
        self._packets.clear()
        self._readable.set()
        self._writable.set()

    def _check_open(self) -> None:
        if not self._open:
            what = "the connection is closed"
            raise ConnectionLostError(what)


class _MemoryConnection:
    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    async def write(self, packet: bytes) -> None:
        await self._outgoing.write(packet)

    async def read(self) -> bytes:
        return await self._incoming.read()

    async def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()
