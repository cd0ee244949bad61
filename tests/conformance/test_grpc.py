"""What only the gRPC network does: tokens and ports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

import grpc
import grpc.aio
import pytest

from dataflow.clock import SystemClock
from dataflow.errors import AuthError, WireError
from dataflow.runtime.certificates import JOB_DAYS, job_pair
from dataflow.runtime.wire import CHANNEL_OPTIONS
from dataflow.testing.linked_nodes import Node, Subject, closed, run_check
from dataflow.transport.base import Connection, ConnectionLostError
from dataflow.transport.encryption import KeyPair
from dataflow.transport.grpc_connection import GrpcNetwork

SECRET = "correct horse battery staple"


def run(body: Callable[[GrpcNetwork], Awaitable[None]], token: str | None = SECRET) -> None:
    """Run `body` with a network that is closed afterwards, leaving nothing behind."""
    network = GrpcNetwork(token=token)

    async def check(_subject: Subject) -> None:
        await body(network)

    run_check(check, lambda: Subject.of(network))


@pytest.mark.parametrize("token", [None, "", "wrong", SECRET + "x", "correct horse battery stapl"])
def test_connect_with_a_wrong_or_no_token_raises_auth_error_without_naming_tokens(token: str | None) -> None:
    async def body(network: GrpcNetwork) -> None:
        target, other = Node(Subject.of(network), 0), GrpcNetwork(token=token)
        source = Node(Subject.of(other), 1)
        address = await target.links.listen()
        with pytest.raises(AuthError) as caught:
            await source.links.connect({0: address})
        text = str(caught.value)
        assert text == (
            "cannot connect to node 0: the token is missing or wrong; start all nodes with the token of this job "
            f"at {address}"
        )
        assert target.links.statistics() == {}
        await closed([source, target])
        await other.close()

    run(body)


def test_call_without_a_token_ends_before_its_handler_or_body(capfd: pytest.CaptureFixture[str]) -> None:
    async def body(network: GrpcNetwork) -> None:
        served: list[Connection] = []

        async def accept(connection: Connection) -> None:
            served.append(connection)

        address = await network.listen(accept)
        async with grpc.aio.insecure_channel(address) as channel:
            for method in ("/dataflow.transport.DataPlane/Connect", "/no/such"):
                call = channel.stream_stream(method)(metadata=(("authorization", SECRET),))
                assert await call.code() == grpc.StatusCode.UNAUTHENTICATED
        assert served == []

    run(body)
    assert SECRET not in "".join(capfd.readouterr())


@pytest.fixture
def unanswered() -> Iterator[str]:
    """An address at which nothing that opens a connection is answered, as behind a cut."""
    with contextlib.ExitStack() as sockets:
        listening = sockets.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(2):  # the kernel drops what comes beyond a full queue
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_attempt_to_connect_through_a_cut_ends_before_tcp_gives_up(unanswered: str) -> None:
    async def body(network: GrpcNetwork) -> None:
        async with asyncio.timeout(15):  # gRPC's own limit is 20 s
            with pytest.raises(ConnectionLostError):
                await network.dial(unanswered)
            async with grpc.aio.insecure_channel(unanswered, options=CHANNEL_OPTIONS) as to_master:
                call: grpc.aio.StreamStreamCall[bytes, bytes] = to_master.stream_stream("/no/such")()
                assert await call.code() == grpc.StatusCode.UNAVAILABLE

    run(body)


NOW_S = SystemClock().wall()
OWN, EXPIRED = job_pair(NOW_S), job_pair(NOW_S - (JOB_DAYS + 1) * 86400.0)


@pytest.mark.parametrize(
    ("shown", "trusted"),
    [(OWN, None), (OWN, job_pair(NOW_S)), (EXPIRED, EXPIRED), (None, OWN)],
    ids=["plain client", "certificate of another job", "expired", "plain server"],
)
def test_nothing_but_the_certificate_of_the_job_makes_a_connection(
    shown: KeyPair | None, trusted: KeyPair | None
) -> None:
    async def body(_network: GrpcNetwork) -> None:
        async def accept(_connection: Connection) -> None:
            pytest.fail("nobody may get here")

        listening, dialling = GrpcNetwork(SECRET, pair=shown), GrpcNetwork(SECRET, pair=trusted)
        address = await listening.listen(accept)
        with pytest.raises(ConnectionLostError):
            await dialling.dial(address)
        await dialling.close()
        await listening.close()

    run(body)


def test_listening_at_a_taken_port_raises_wire_error() -> None:
    async def body(network: GrpcNetwork) -> None:
        async def accept(connection: Connection) -> None:
            await connection.read()

        port = int((await network.listen(accept)).rpartition(":")[2])
        second = GrpcNetwork(port=port)
        with pytest.raises(WireError, match=f"cannot listen at 127.0.0.1:{port}; choose another port"):
            await second.listen(accept)
        await second.close()

    run(body)


def test_peer_that_stops_reading_holds_writes_back() -> None:
    async def body(network: GrpcNetwork) -> None:
        reading = asyncio.Event()

        async def accept(connection: Connection) -> None:
            await reading.wait()
            while True:
                await connection.read()

        connection = await network.dial(await network.listen(accept))
        written = 0

        async def write() -> None:
            nonlocal written
            for _ in range(100):
                await connection.write(bytes(1 << 20))
                written += 1

        writing = asyncio.ensure_future(write())
        await asyncio.sleep(0.5)
        assert written < 50
        reading.set()
        await writing
        await connection.close()

    run(body)
