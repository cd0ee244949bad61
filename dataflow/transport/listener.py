"""A gRPC server that goes on listening, whatever it is sent.

A call of a method whose name is not UTF-8 ends the loop of grpc.aio's server before anybody has seen a token (grpcio
1.85, `AioServer._server_main_loop`): calls under way go on, but nobody new gets in, and `wait_for_termination` does not
return. So a server that runs no more is followed by another one at the same port.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final, cast

import grpc.aio

from dataflow.transport.addresses import endpoint
from dataflow.transport.encryption import KeyPair, add_port

_LOOK_S: Final = 0.1


class Listener:
    """Servers at one port, one after the other; calls that an earlier one has accepted go on.

    Args:
        make: gives a server with its services.
        host: name or address to listen at.
        port: 0 for any free one; `port` says which it is.
        pair: calls are encrypted with it; plain text if None.

    Raises:
        RuntimeError: the port is taken, or the host is not of this machine.
    """

    def __init__(self, make: Callable[[], grpc.aio.Server], host: str, port: int, pair: KeyPair | None) -> None:
        self._make, self._host, self._pair = make, host, pair
        self._server = make()
        self.port = add_port(self._server, endpoint(host, port), pair)
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept calls from now on."""
        await self._server.start()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self, grace_s: float | None) -> None:
        """Accept no more calls, and end those of the newest server; the others' end with who serves them.

        Args:
            grace_s: seconds that calls have to end by themselves; none if None.
        """
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._runs():
            await self._server.stop(grace_s)

    def _runs(self) -> bool:
        return bool(cast("Any", self._server)._server.is_running())  # nothing public tells

    async def _watch(self) -> None:
        told = False
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._runs():
                continue
            server = self._make()
            try:
                add_port(server, endpoint(self._host, self.port), self._pair)
            except RuntimeError:  # the old one has not left it yet, or somebody else has taken it
                continue
            await server.start()
            self._server = server
            if not told:
                what = f"somebody has sent port {self.port} what ends a gRPC server; there is another one now"
                print(f"warning: {what}", file=sys.stderr, flush=True)
                told = True
