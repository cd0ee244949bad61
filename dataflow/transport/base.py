"""What a transport provides: connections that carry packets in order and may break, and networks that make them.

The one invariant: what `Connection.read` returns on one side is a prefix of what was given to `Connection.write` on
the other, packet by packet and bit by bit. Anything may be lost after that prefix; `dataflow.transport.links` makes
delivery reliable on top.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, TypeAlias

from dataflow.errors import AkoError


class ConnectionLostError(AkoError):
    """A connection broke, was closed, or could not be made; what was in flight may be lost."""

    exit_code = 1


class Connection(Protocol):
    """An ordered, duplex stream of packets. One task may write while another reads."""

    async def write(self, packet: bytes) -> None:
        """Hand over a packet; waits while the connection's buffers are full.

        Raises:
            ConnectionLostError: the connection is broken or closed.
        """

    async def read(self) -> bytes:
        """The next packet.

        Raises:
            ConnectionLostError: the connection is broken or closed.
        """

    async def close(self) -> None:
        """Break the connection on both sides; packets in flight may be lost. May be called again, and by any task."""


Accept: TypeAlias = Callable[[Connection], Awaitable[None]]
"""Serves one accepted connection, which is closed when it ends; it may be cancelled when the connection breaks."""


class Network(Protocol):
    """Makes connections between addresses. Whoever makes a network closes it, after the links that use it."""

    async def listen(self, accept: Accept) -> str:
        """Accept connections, each served by a call of `accept`; returns the address to dial."""

    async def dial(self, address: str) -> Connection:
        """A connection to whoever listens at `address`, accepted by the other side.

        Raises:
            ConnectionLostError: nobody listens there, or the connection broke at once.
            AuthError: the other side refuses the token.
        """

    def busy_s(self, addresses: Collection[str]) -> dict[str, float]:
        """Seconds in which the connection to each of these addresses had bytes on their way, where that is known.

        They are until the other side's kernel has acknowledged them, whether its process has read them or not.
        """

    async def close(self) -> None:
        """Stop listening and break all connections."""


async def serve(accept: Accept, connection: Connection) -> None:
    """Let `accept` serve `connection`, and close it; that the connection is lost is a usual end."""
    try:
        await accept(connection)
    except ConnectionLostError:
        return
    finally:
        await connection.close()
