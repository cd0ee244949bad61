"""What our links carry: goodput and processor time of messages over them, against gRPC itself and against TCP.

    python benchmarks/streams.py [--rounds 5] [--seconds 1] [--json FILE]
    sudo python benchmarks/streams.py --lab 1gbit

A sender and a receiver, two processes for each kind of stream, which take turns, A B C A B C. The kinds:

links: `Links` over `GrpcNetwork` as in a job: messages are Fragments of Ako's, numbered, acknowledged, checked and
built again at the receiver, which grants credit as it takes them.

aio, threads: a bare client-streaming call of gRPC's asyncio API, on which ours is built, and of its API with threads,
of ready byte strings as long as a message's array, which the receiver drops.

tcp: a bare TCP stream of such byte strings; with --lab only.

All have the environment of a job process.

Goodput counts the arrays alone, from the first send to when the receiver has the last. The seconds of the processor are
those of both processes. Ratios are of pairs in one round, against the better of the two bare calls. Without --lab both
processes are on this machine's loopback; with it, on two hosts of a lab of its own, whose links have that rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median, quantiles
from threading import Event, Thread
from typing import Any, Protocol

import grpc
import grpc.aio
import numpy as np

from dataflow.clock import SystemClock
from dataflow.lab import lab
from dataflow.lab.plan import Host, LabPlan, lab_name
from dataflow.quantities import bytes_per_second
from dataflow.runtime.process import ONE_THREAD, READ_WHOLE
from dataflow.transport.frames import MAX_PACKET_NBYTES
from dataflow.transport.grpc_connection import GrpcNetwork
from dataflow.transport.links import Links
from operators.messages import Fragment

SIZES = {"1 MiB": 1 << 20, "64 KiB": 64 << 10, "4 KiB": 4 << 10}
FASTEST = {"1 MiB": 1.5e9, "64 KiB": 0.7e9, "4 KiB": 0.08e9}
"""Bytes per second, about, of a stream on loopback: how much to send so that it takes some time."""

WINDOW_NBYTES = 4 << 20
"""Credit of a stream, as in a job."""

READY = 16
"""Messages that take turns, so that none lies in the processor's cache when it is sent again."""

EDGE = 1
BARE = ("aio", "threads")
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


@dataclass(frozen=True)
class Transfer:
    """What one transfer took, in seconds; of the processor, at the sender and at the receiver."""

    kind: str
    size: str
    count: int
    nbytes: int
    wall_s: float
    sender_s: float
    receiver_s: float

    @property
    def goodput(self) -> float:
        """Bytes per second."""
        return self.count * self.nbytes / self.wall_s

    @property
    def cpu_s_per_gb(self) -> float:
        """Seconds of the processor for 10^9 bytes, of both ends."""
        return (self.sender_s + self.receiver_s) / (self.count * self.nbytes) * 1e9

    @property
    def messages_per_core_s(self) -> float:
        """Messages for each second of the processor, of both ends."""
        return self.count / (self.sender_s + self.receiver_s)


class Pair:
    """The two processes of a kind of stream.

    Args:
        kind: of stream.
        host: address that the receiver listens on.
        enter: words before the commands of sender and receiver.
    """

    def __init__(self, kind: str, host: str, enter: Sequence[Sequence[str]]) -> None:
        self.kind = kind
        self._receiver = self._start(enter[1], "--host", host)
        address = _line(self._receiver).strip()
        self._sender = self._start(enter[0], "--address", address)
        _line(self._sender)

    def transfer(self, size: str, count: int) -> Transfer:
        """Send so many messages of a size."""
        nbytes = SIZES[size]
        for process in (self._receiver, self._sender):
            assert process.stdin is not None
            process.stdin.write(f"{count} {nbytes}\n")
            process.stdin.flush()
        (began_s, _, sender_s), (_, ended_s, receiver_s) = (
            map(float, _line(process).split()) for process in (self._sender, self._receiver)
        )
        return Transfer(self.kind, size, count, nbytes, ended_s - began_s, sender_s, receiver_s)

    def close(self) -> None:
        """End both processes."""
        for process in (self._sender, self._receiver):
            process.kill()
            process.communicate()

    def _start(self, enter: Sequence[str], *arguments: str) -> subprocess.Popen[str]:
        command = [*enter, sys.executable, __file__, "--serve", self.kind, *arguments]
        environment = {**READ_WHOLE, **os.environ, **ONE_THREAD}
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        message = f"a process of the benchmark ended: {process.args}"
        raise SystemExit(message)
    return line


@contextmanager
def places(rate: str) -> Iterator[tuple[str, tuple[Sequence[str], Sequence[str]]]]:
    """Where streams lead: the receiver's address, and what brings sender and receiver to their hosts."""
    if not rate:
        yield "127.0.0.1", ((), ())
        return
    with tempfile.TemporaryDirectory() as folder:
        state_dir, clock = Path(folder), SystemClock()
        plan = LabPlan(name=lab_name(state_dir), hosts=(Host(rate=bytes_per_second(rate)),) * 2)
        try:
            lab.up(plan, state_dir, clock)
            sender, receiver = (lab.enter(plan, plan.host(number), ()) for number in range(2))
            yield plan.host(1).address, (sender, receiver)
        finally:
            lab.down(state_dir, clock)


def measure(options: argparse.Namespace) -> list[Transfer]:
    """All transfers, in rounds in which the kinds take turns; those of a first round are not counted."""
    kinds = ("links", "tcp", *BARE) if options.lab else ("links", *BARE)
    sizes = [size for size in SIZES if not options.lab or size != "4 KiB"]
    found = []
    with places(options.lab) as (host, enter), ExitStack() as stack:
        pairs = [Pair(kind, host, enter) for kind in kinds]
        for pair in pairs:
            stack.callback(pair.close)
        for size in sizes:
            rate = bytes_per_second(options.lab) if options.lab else FASTEST[size]
            count = max(1, round(options.seconds * rate / SIZES[size]))
            for number in range(-1, options.rounds):
                for pair in pairs:
                    transfer = pair.transfer(size, count if number >= 0 else max(1, count // 8))
                    if number >= 0:
                        found.append(transfer)
    return found


def spread(values: Iterable[float]) -> str:
    """Median and quartiles."""
    first, middle, third = quantiles(values, n=4, method="inclusive")
    return f"{middle:.3g} [{first:.3g}, {third:.3g}]"


def table(found: Sequence[Transfer]) -> list[str]:
    """A row for each size and kind, with the ratios of the links to it, pair by pair."""
    lines = [
        f"{'messages':9}{'stream':9}{'MB/s':>26}{'CPU s/GB':>22}{'messages/s/core':>28}"
        "   links / it: goodput, CPU per GB, messages per core"
    ]
    for size in dict.fromkeys(each.size for each in found):
        of = {
            kind: [each for each in found if (each.kind, each.size) == (kind, size)]
            for kind in dict.fromkeys(each.kind for each in found)
        }
        for kind, transfers in of.items():
            pairs = list(zip(of["links"], transfers, strict=True))
            ratios = (
                spread(ours.goodput / other.goodput for ours, other in pairs),
                spread(ours.cpu_s_per_gb / other.cpu_s_per_gb for ours, other in pairs),
                spread(ours.messages_per_core_s / other.messages_per_core_s for ours, other in pairs),
            )
            lines.append(
                f"{size:9}{kind:9}{spread(each.goodput / 1e6 for each in transfers):>26}"
                f"{spread(each.cpu_s_per_gb for each in transfers):>22}"
                f"{spread(each.messages_per_core_s for each in transfers):>28}"
                + ("" if kind == "links" else "   " + ", ".join(ratios))
            )
    return lines


def better(found: Sequence[Transfer], size: str) -> str:
    """The bare call with the higher median of goodput."""
    rates = {kind: median(each.goodput for each in found if (each.kind, each.size) == (kind, size)) for kind in BARE}
    return max(rates, key=lambda kind: rates[kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default="", metavar="RATE", help="between two hosts of a lab with links of this rate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="about what a transfer takes")
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--serve", choices=ENDS, help=argparse.SUPPRESS)
    parser.add_argument("--host", default="", help=argparse.SUPPRESS)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.host, options.address)
        return
    found = measure(options)
    print("\n".join(table(found)))
    for size in dict.fromkeys(each.size for each in found):
        print(f"{size}: the better bare call is {better(found, size)}")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
