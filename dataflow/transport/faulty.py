"""A network with declared faults around another one.

    faults = (CutAfter(frames=100, times=3, on=(0, 1)), Delay(0.0, 0.002))
    network = FaultyNetwork(MemoryNetwork(), faults, np.random.default_rng(7))
    links = Links(network.at(0), ...)

Invariant: faults only lose connections or take time; what arrives is what was sent, in order, as with any network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from dataflow.transport.base import Accept, Connection, ConnectionLostError, Network


@dataclass(frozen=True, slots=True)
class CutAfter:
    """Break a connection when it has carried `frames` packets, both directions together; the last one is lost.

    Args:
        frames: packets that a connection carries before it breaks.
        times: how many connections break.
        on: (source, target): only connections that node `source` dials to node `target`; None: all.
    """

    frames: int
    times: int = 1
    on: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """Hold every packet back for a uniformly random time; packets stay in order.

    Args:
        min_s: shortest time, in seconds.
        max_s: longest time, in seconds.
    """

    min_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """Let dialling fail.

    Args:
        times: how many attempts fail.
        on: (source, target): only attempts of node `source` to reach node `target`; None: all.
    """

    times: int
    on: tuple[int, int] | None = None


Fault: TypeAlias = CutAfter | Delay | Refuse


F = TypeVar("F", bound=CutAfter | Refuse)


class FaultyNetwork:
    """A network whose connections suffer `faults`.

    Args:
        inner: makes the connections; closed with this network.
        faults: what goes wrong; each counts its `times` over all nodes of this object.
        rng: draws the delays.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        inner: Network,
        faults: tuple[Fault, ...],
        rng: np.random.Generator,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._inner, self._rng, self._sleep = inner, rng, sleep
        self._delays = [fault for fault in faults if isinstance(fault, Delay)]
        self._cuts = _Supply(tuple(fault for fault in faults if isinstance(fault, CutAfter)))
        self._refusals = _Supply(tuple(fault for fault in faults if isinstance(fault, Refuse)))
        self._nodes: dict[str, int] = {}

    def at(self, node: int) -> Network:
        """The network as node number `node` sees it."""
        return _NodeView(self, node)

    async def listen(self, accept: Accept, node: int) -> str:
        """Accept connections for `node`; see `Network.listen`."""
        address = await self._inner.listen(accept)
        self._nodes[address] = node
        return address

    async def dial(self, address: str, node: int) -> Connection:
        """Connect from `node`, unless a fault forbids it; see `Network.dial`."""
        pair = (node, self._nodes.get(address, -1))
        if self._refusals.take(*pair) is not None:
            what = f"a declared fault refuses the connection to {address}"
            raise ConnectionLostError(what)
        connection = await self._inner.dial(address)
        cut = self._cuts.take(*pair)
        return _FaultyConnection(connection, None if cut is None else cut.frames, self._wait)

    async def close(self) -> None:
        """Close the inner network."""
        await self._inner.close()

    async def _wait(self) -> None:
        for delay in self._delays:
            await self._sleep(self._rng.uniform(delay.min_s, delay.max_s))


class _Supply(Generic[F]):
    """Faults that strike a limited number of times."""

    def __init__(self, faults: tuple[F, ...]) -> None:
        self._faults, self._left = faults, [fault.times for fault in faults]

    def take(self, source: int, target: int) -> F | None:
        """The first fault with times left for a connection from `source` to `target`; uses one up."""
        for index, fault in enumerate(self._faults):
            if self._left[index] > 0 and fault.on in (None, (source, target)):
                self._left[index] -= 1
                return fault
        return None


class _NodeView:
    def __init__(self, network: FaultyNetwork, node: int) -> None:
        self._network, self._node = network, node

    async def listen(self, accept: Accept) -> str:
        return await self._network.listen(accept, self._node)

    async def dial(self, address: str) -> Connection:
        return await self._network.dial(address, self._node)

    def busy_s(self, addresses: Collection[str]) -> dict[str, float]:
        del addresses  # the kernel knows nothing of declared delays
        return {}

    async def close(self) -> None:
        await self._network.close()


class _FaultyConnection:
    """Counts packets; breaks the inner connection instead of carrying packet number `cut_at`, from 1."""

    def __init__(self, inner: Connection, cut_at: int | None, wait: Callable[[], Awaitable[None]]) -> None:
        self._inner, self._left, self._wait = inner, cut_at, wait

    async def write(self, packet: bytes) -> None:
        await self._wait()
        await self._count()
        await self._inner.write(packet)

    async def read(self) -> bytes:
        packet = await self._inner.read()
        await self._wait()
        await self._count()
        return packet

    async def close(self) -> None:
        await self._inner.close()

    async def _count(self) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left <= 0:
            await self._inner.close()
            what = "a declared fault cut the connection"
            raise ConnectionLostError(what)
