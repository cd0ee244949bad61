"""The ends of the streams that `streams.py` compares: senders and receivers of each kind, each a process of its own.

python benchmarks/stream_ends.py KIND --host HOST
python benchmarks/stream_ends.py KIND --address HOST:PORT
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from threading import Event, Thread
from typing import Any, Protocol

import grpc
import grpc.aio
import numpy as np

from dataflow.transport.frames import MAX_PACKET_NBYTES
from dataflow.transport.grpc_connection import GrpcNetwork
from dataflow.transport.links import Links
from operators.messages import Fragment

WINDOW_NBYTES = 4 << 20
"""Credit of a stream, as in a job."""

READY = 16
"""Messages that take turns, so that none lies in the processor's cache when it is sent again."""

EDGE = 1
_METHOD = "/benchmark.Streams/Take"
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_PACKET_NBYTES),
    ("grpc.max_send_message_length", MAX_PACKET_NBYTES),
    ("grpc.so_reuseport", 0),
)


class Receiver(Protocol):
    """The receiving end of one kind of stream; `address` is where it listens."""

    address: str

    def take(self, count: int, nbytes: int) -> None:
        """Return when `count` messages of `nbytes` bytes have come since the last call."""


class Sender(Protocol):
    """The sending end of one kind of stream."""

    def send(self, count: int, nbytes: int) -> None:
        """Return when `count` messages of `nbytes` bytes have been received."""


class Loop:
    """An event loop that goes on, in a thread of its own, while nobody waits for what runs on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what a coroutine returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class LinksReceiver:
    """Takes fragments and grants credit for them."""

    def __init__(self, host: str) -> None:
        self._loop, self._network = Loop(), GrpcNetwork(host=host)
        self._left, self._done = 0, asyncio.Event()
        self._links = _links(self._network, 1, self)
        self.address = self._loop.run(self._listen())

    async def _listen(self) -> str:
        self._links.grant(0, EDGE, WINDOW_NBYTES)
        return await self._links.listen()

    def on_message(self, source: int, edge: int, _message: object, nbytes: int) -> None:
        """Count a message, and let the sender send as much again."""
        self._links.grant(source, edge, nbytes)
        self._left -= 1
        if not self._left:
            self._done.set()

    def on_credit(self, peer: int, edge: int, nbytes: int) -> None:
        """Nothing is sent from here."""
        raise AssertionError

    def take(self, count: int, nbytes: int) -> None:
        """See `Receiver.take`."""
        self._loop.run(self._take(count))

    async def _take(self, count: int) -> None:
        self._left += count
        if self._left:
            self._done.clear()
            await self._done.wait()


class LinksSender:
    """Sends fragments as far as it has credit."""

    def __init__(self, address: str) -> None:
        self._loop, self._network = Loop(), GrpcNetwork()
        self._credit, self._more = 0, asyncio.Event()
        self._links = _links(self._network, 0, self)
        self._loop.run(self._connect(address))

    async def _connect(self, address: str) -> None:
        await self._links.connect({1: address})

    def on_message(self, source: int, edge: int, _message: object, nbytes: int) -> None:
        """Nothing comes here."""
        raise AssertionError

    def on_credit(self, _peer: int, _edge: int, nbytes: int) -> None:
        """Note that more may be sent."""
        self._credit += nbytes
        self._more.set()

    def send(self, count: int, nbytes: int) -> None:
        """See `Sender.send`."""
        self._loop.run(self._send(count, nbytes))

    async def _send(self, count: int, nbytes: int) -> None:
        messages = [
            Fragment(0, 0, 1, 0, 1, 1, skips=False, values=np.zeros(nbytes // 4, np.float32)) for _ in range(READY)
        ]
        for message in islice(cycle(messages), count):
            while self._credit <= 0:
                self._more.clear()
                await self._more.wait()
            self._links.send(1, EDGE, message)
            self._credit -= nbytes + 128
        await self._links.drain()


def _links(network: GrpcNetwork, node: int, end: Any) -> Links:
    return Links(
        network,
        node=node,
        job="benchmark",
        plan_hash="",
        incarnation=0,
        edge_types={EDGE: Fragment},
        on_message=end.on_message,
        on_end=lambda _source, _edge: None,
        on_credit=end.on_credit,
        on_lost=lambda _peer, _reason: None,
        rng=np.random.default_rng(0),
    )


def ready(count: int, nbytes: int) -> Iterator[bytes]:
    """So many byte strings, of `READY` that take turns."""
    return islice(cycle([bytes([number]) * nbytes for number in range(READY)]), count)


class AioReceiver:
    """A server of gRPC's asyncio API."""

    def __init__(self, host: str) -> None:
        self._loop, self._done = Loop(), asyncio.Event()
        self.address = self._loop.run(self._listen(host))

    async def _listen(self, host: str) -> str:
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_Method(grpc.stream_unary_rpc_method_handler(self._serve)),))
        port = self._server.add_insecure_port(f"{host}:0")
        await self._server.start()
        return f"{host}:{port}"

    async def _serve(self, _requests: object, context: Any) -> bytes:
        while await context.read() is not grpc.aio.EOF:
            pass
        self._done.set()
        return b""

    def take(self, count: int, nbytes: int) -> None:
        """See `Receiver.take`."""
        self._loop.run(self._done.wait())
        self._done.clear()


class AioSender:
    """A client of gRPC's asyncio API."""

    def __init__(self, address: str) -> None:
        self._loop = Loop()
        self._loop.run(self._dial(address))

    async def _dial(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        await self._channel.channel_ready()

    def send(self, count: int, nbytes: int) -> None:
        """See `Sender.send`."""
        self._loop.run(self._send(ready(count, nbytes)))

    async def _send(self, messages: Iterable[bytes]) -> None:
        call = self._channel.stream_unary(_METHOD)()
        for message in messages:
            await call.write(message)
        await call.done_writing()
        await call


class ThreadsReceiver:
    """A server of gRPC's API with threads."""

    def __init__(self, host: str) -> None:
        self._done = Event()
        self._server = grpc.server(ThreadPoolExecutor(2), options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_Method(grpc.stream_unary_rpc_method_handler(self._serve)),))
        self.address = f"{host}:{self._server.add_insecure_port(f'{host}:0')}"
        self._server.start()

    def _serve(self, requests: Iterator[bytes], _context: object) -> bytes:
        for _message in requests:
            pass
        self._done.set()
        return b""

    def take(self, count: int, nbytes: int) -> None:
        """See `Receiver.take`."""
        self._done.wait()
        self._done.clear()


class ThreadsSender:
    """A client of gRPC's API with threads."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        grpc.channel_ready_future(self._channel).result()

    def send(self, count: int, nbytes: int) -> None:
        """See `Sender.send`."""
        self._channel.stream_unary(_METHOD)(ready(count, nbytes))


class _Method(grpc.GenericRpcHandler):
    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def service(self, _details: object) -> Any:
        return self._handler


class TcpReceiver:
    """A bare socket."""

    def __init__(self, host: str) -> None:
        self._server = socket.create_server((host, 0))
        self.address = f"{host}:{self._server.getsockname()[1]}"
        self._stream: socket.socket | None = None

    def take(self, count: int, nbytes: int) -> None:
        """See `Receiver.take`."""
        if self._stream is None:
            self._stream, _ = self._server.accept()
        left, room = count * nbytes, bytearray(1 << 18)
        while left:
            left -= self._stream.recv_into(room, min(left, len(room)))
        self._stream.send(b"!")


class TcpSender:
    """A bare socket."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._stream = socket.create_connection((host, int(port)))

    def send(self, count: int, nbytes: int) -> None:
        """See `Sender.send`."""
        for message in ready(count, nbytes):
            self._stream.sendall(message)
        self._stream.recv(1)


ENDS: dict[str, tuple[type[Receiver], type[Sender]]] = {
    "links": (LinksReceiver, LinksSender),
    "aio": (AioReceiver, AioSender),
    "threads": (ThreadsReceiver, ThreadsSender),
    "tcp": (TcpReceiver, TcpSender),
}


def serve(kind: str, host: str, address: str) -> None:
    """Be one end of a stream: the receiver at `host`, or the sender to `address` if one is given.

    Reads ``count nbytes`` from each line of its input, and prints when it began and ended, in seconds of the machine's
    one monotonic clock, and the seconds of the processor that it took.
    """
    if address:
        act = ENDS[kind][1](address).send
        print("ready", flush=True)
    else:
        receiver = ENDS[kind][0](host)
        act = receiver.take
        print(receiver.address, flush=True)
    for line in sys.stdin:
        count, nbytes = map(int, line.split())
        began_s, before_s = time.monotonic(), time.process_time()
        act(count, nbytes)
        ended_s, cpu_s = time.monotonic(), time.process_time() - before_s
        print(began_s, ended_s, cpu_s, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=ENDS)
    parser.add_argument("--host", default="", help="be the receiver, and listen there")
    parser.add_argument("--address", default="", help="be the sender, to the receiver there")
    options = parser.parse_args()
    serve(options.kind, options.host, options.address)


if __name__ == "__main__":
    main()
