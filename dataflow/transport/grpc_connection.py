"""Connections over gRPC: one bidirectional call each, on a TCP connection of its own.

Invariant: packets cross as raw bytes; gRPC neither copies them through a message class nor shares one connection's
flow control with another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from dataflow.errors import AuthError, WireError
from dataflow.transport import sockets
from dataflow.transport.addresses import endpoint
from dataflow.transport.authorization import TokenInterceptor, everything, token_metadata
from dataflow.transport.base import Accept, Connection, ConnectionLostError, serve
from dataflow.transport.channels import channel_options
from dataflow.transport.encryption import KeyPair, open_aio_channel
from dataflow.transport.frames import MAX_PACKET_NBYTES
from dataflow.transport.generated import data_pb2
from dataflow.transport.listener import Listener

_SERVICE: Final = data_pb2.DESCRIPTOR.services_by_name["DataPlane"].full_name
_METHOD: Final = "Connect"

_OPTIONS: Final = (
    # Who answers is given longer by the links.
    *channel_options(MAX_PACKET_NBYTES, connecting_ms=1900),
    # Two servers would silently share a port.
    ("grpc.so_reuseport", 0),
    # gRPC's own pings wait behind data, so there are none; but this makes it set TCP_USER_TIMEOUT, by which the kernel
    # gives up a connection on which nothing that was sent is acknowledged, whatever the processes are doing.
    ("grpc.keepalive_time_ms", 2**31 - 2),
    ("grpc.keepalive_timeout_ms", 1000),
)

_SETTLE_S: Final = 0.05

# What gRPC raises on a call that has ended; cancelling a call cancels those who wait for it.
_BROKEN: Final = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, asyncio.CancelledError)

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class GrpcNetwork:
    """A network over gRPC; its addresses are ``host:port``.

    Args:
        token: shown when dialling and demanded from those who dial; None: neither.
        host: name or address to listen on and to be dialled at; the default is reachable from this machine only.
        port: where to listen; 0: any free port.
        pair: of all nodes of the network, which then encrypt what they send; each takes who has it for one of them.
    """

    def __init__(
        self, token: str | None = None, host: str = "127.0.0.1", port: int = 0, *, pair: KeyPair | None = None
    ) -> None:
        self._token, self._host, self._port, self._pair = token, host, port, pair
        self._listeners: list[Listener] = []
        self._accepted: set[_AcceptedConnection] = set()

    async def listen(self, accept: Accept) -> str:
        """Accept connections; see `Network.listen`.

        Raises:
            WireError: the port is taken or the host is not of this machine.
        """

        async def connect(_requests: object, context: _Context) -> None:
            connection = _AcceptedConnection(context)
            self._accepted.add(connection)
            try:
                await _serve(accept, connection)
            finally:
                self._accepted.discard(connection)

        def make() -> grpc.aio.Server:
            interceptors = [] if self._token is None else [TokenInterceptor({self._token: everything})]
            server = grpc.aio.server(interceptors=interceptors, options=_OPTIONS)
            handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(connect)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
            return server

        try:
            listener = Listener(make, self._host, self._port, self._pair)
        except RuntimeError as error:
            what = f"cannot listen at {endpoint(self._host, self._port)}"
            raise WireError(what, fix="choose another port, or 0 for any free one") from error
        await listener.start()
        self._listeners.append(listener)
        return endpoint(self._host, listener.port)

    async def dial(self, address: str) -> Connection:
        """Connect to a listener; see `Network.dial`."""
        channel = open_aio_channel(address, self._pair.certificate if self._pair else None, _OPTIONS)
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")
        call = method(metadata=token_metadata(self._token))
        connection = _DialledConnection(channel, call)
        try:
            await connection.established()
        except BaseException:  # cancellation too, as by a deadline: nobody else knows the channel yet
            await connection.close()
            raise
        return connection

    def busy_s(self, addresses: Collection[str]) -> dict[str, float]:
        """Seconds in which connections had bytes on their way; see `Network.busy_s`."""
        return sockets.busy_s(addresses)

    async def close(self) -> None:
        """Stop the servers, which breaks the connections they accepted."""
        listeners, self._listeners = self._listeners, []
        await asyncio.gather(*(listener.stop(None) for listener in listeners))
        for connection in list(self._accepted):
            await connection.close()
        # gRPC completes cancelled operations from its own threads; a loop that closes before fails a later one.
        await asyncio.sleep(_SETTLE_S)


class _DialledConnection:
    def __init__(self, channel: grpc.aio.Channel, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        self._channel, self._call = channel, call

    async def established(self) -> None:
        """Return when the other side has accepted the call, which it says with its initial metadata."""
        try:
            await self._call.initial_metadata()
        except _BROKEN as error:
            raise await self._lost(error) from None
        if self._call.done():
            raise await self._lost(None)

    async def write(self, packet: bytes) -> None:
        try:
            await self._call.write(packet)
        except _BROKEN as error:
            raise await self._lost(error) from None

    async def read(self) -> bytes:
        try:
            packet = await self._call.read()
        except _BROKEN as error:
            raise await self._lost(error) from None
        if not isinstance(packet, bytes):  # the end of the stream
            raise await self._lost(None)
        return packet

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()

    async def _lost(self, error: BaseException | None) -> BaseException:
        """What to raise: the cancellation itself if it is this task's and not the call's, else why the call ended."""
        if isinstance(error, asyncio.CancelledError) and _being_cancelled():
            return error
        code = await self._call.code()
        details = await self._call.details() or "ended by the other side"
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return AuthError(details, fix="start all nodes with the token of this job")
        what = f"the connection is lost: {code.name}: {details}"
        return ConnectionLostError(what)


class _AcceptedConnection:
    def __init__(self, context: _Context) -> None:
        self._context = context
        self.closed = asyncio.Event()

    async def greet(self) -> None:
        await self._context.send_initial_metadata(())

    async def write(self, packet: bytes) -> None:
        try:
            await self._context.write(packet)
        except _BROKEN as error:
            raise self._lost(error) from None

    async def read(self) -> bytes:
        try:
            packet = await self._context.read()
        except _BROKEN as error:
            raise self._lost(error) from None
        if not isinstance(packet, bytes):  # the end of the stream
            raise self._lost(None)
        return packet

    async def close(self) -> None:
        self.closed.set()

    def _lost(self, error: BaseException | None) -> BaseException:
        if isinstance(error, asyncio.CancelledError) and _being_cancelled():
            return error
        what = "the connection is lost: closed by the other side"
        return ConnectionLostError(what)


async def _serve(accept: Accept, connection: _AcceptedConnection) -> None:
    """Serve a call until `accept` ends or the connection is closed or broken; then the call ends."""
    await connection.greet()
    task = asyncio.ensure_future(serve(accept, connection))
    try:
        await connection.closed.wait()
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def _being_cancelled() -> bool:
    """Whether the current task was cancelled, rather than the call that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
