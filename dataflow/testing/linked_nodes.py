"""What checks of networks are written with: a network under test, and nodes on it that note what their links tell."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dataflow.message import Message, nbytes
from dataflow.transport.base import Network
from dataflow.transport.faulty import FaultyNetwork
from dataflow.transport.link_options import LinkOptions
from dataflow.transport.links import Links

Array: TypeAlias = np.ndarray[Any, Any]

OPTIONS = LinkOptions(patience_s=20.0, first_backoff_s=0.001, max_backoff_s=0.02)
"""Links in the checks reconnect faster than in earnest."""


@dataclass(frozen=True)
class Subject:
    """A network under test.

    Args:
        at: the network as a node sees it; the nodes must reach each other.
        close: closes it for all nodes.
    """

    at: Callable[[int], Network]
    close: Callable[[], Awaitable[None]]

    @classmethod
    def of(cls, network: Network | FaultyNetwork) -> Subject:
        """One object as the network of all nodes."""
        if isinstance(network, FaultyNetwork):
            return cls(network.at, network.close)
        return cls(lambda _: network, network.close)


Check: TypeAlias = Callable[[Subject], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Numbered(Message):
    """A message of the checks.

    Args:
        number: its number, from 0.
        data: contents that follow from the number.
    """

    number: int
    data: Array


def run_check(check: Check, make: Callable[[], Subject]) -> None:
    """Run `check` in a new event loop; nothing may be left behind, and no exception go unseen."""

    async def body() -> None:
        unseen: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        subject = make()
        try:
            await check(subject)
        finally:
            await subject.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            _, left = await asyncio.wait(left, timeout=5.0)  # those that are ending
        assert not left, f"tasks are left behind: {left}"
        assert not unseen, f"exceptions went unseen: {unseen}"

    asyncio.run(body())


class Node:
    """A node of the checks: its links, and everything they told.

    Args:
        subject: the network under test.
        number: the node's number.
        edges: how many edges there are, numbered from 0.
        incarnation: the node's incarnation.
        settings: further arguments of `Links`, in place of those of the checks.
    """

    def __init__(self, subject: Subject, number: int, *, edges: int = 1, incarnation: int = 0, **settings: Any) -> None:
        self.number = number
        self.messages: defaultdict[tuple[int, int], list[Message | None]] = defaultdict(list)
        self.order: list[tuple[int, int]] = []
        self.credits: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.lost: list[tuple[int, str]] = []
        self.changed = asyncio.Event()
        self.window_nbytes = 0
        arguments: dict[str, Any] = {
            "job": "job",
            "plan_hash": "hash",
            "on_message": self._on_message,
            "on_end": lambda source, edge: self._note(source, edge, None),
            "on_credit": self._on_credit,
            "on_lost": self._on_lost,
            "options": OPTIONS,
        }
        self.links = Links(
            subject.at(number),
            node=number,
            incarnation=incarnation,
            edge_types=dict.fromkeys(range(edges), Numbered),
            rng=np.random.default_rng(number),
            **(arguments | settings),
        )

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Return when `condition` holds; it is tried again whenever the links told something."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def stream(self, peer: int, edge: int, messages: Sequence[Message]) -> None:
        """Send `messages` and the end of the edge, each message when there is credit."""
        for message in messages:
            await self.until(lambda: self.credits[peer, edge] > 0)
            self.credits[peer, edge] -= nbytes(message)
            self.links.send(peer, edge, message)
        self.links.send_end(peer, edge)

    def _on_message(self, source: int, edge: int, message: Message, size: int) -> None:
        assert size == nbytes(message)
        self._note(source, edge, message)
        self.links.grant(source, edge, size)

    def _note(self, source: int, edge: int, message: Message | None) -> None:
        self.messages[source, edge].append(message)
        self.order.append((source, edge))
        self.changed.set()

    def _on_credit(self, peer: int, edge: int, size: int) -> None:
        self.credits[peer, edge] += size
        self.changed.set()

    def _on_lost(self, peer: int, reason: str) -> None:
        self.lost.append((peer, reason))
        self.changed.set()


async def connected(nodes: Sequence[Node]) -> list[str]:
    """Listen at and connect all `nodes`; returns their addresses."""
    addresses = [await node.links.listen() for node in nodes]
    listing = {node.number: address for node, address in zip(nodes, addresses, strict=True)}
    for node in nodes:
        await node.links.connect({peer: at for peer, at in listing.items() if peer != node.number})
    return addresses


async def closed(nodes: Sequence[Node]) -> None:
    """Close the links of all `nodes`."""
    for node in nodes:
        await node.links.close()


def numbered(count: int, seed: int, most: int = 2000) -> list[Numbered]:
    """Messages with `most` float32 or fewer each; equal for equal arguments."""
    rng = np.random.default_rng(seed)
    return [Numbered(number, rng.random(rng.integers(0, most + 1), np.float32)) for number in range(count)]


def assert_delivered(got: Sequence[Message | None], sent: Sequence[Numbered]) -> None:
    """All of `sent` arrived once, in order and intact, and then the end."""
    numbers = [message.number if isinstance(message, Numbered) else None for message in got]
    assert numbers == [*(message.number for message in sent), None]
    for message, original in zip(got, sent, strict=False):
        assert isinstance(message, Numbered)
        assert message.data.dtype == original.data.dtype
        assert np.array_equal(message.data, original.data)
