import asyncio
import socket
import struct

import pytest

from dataflow.transport.base import ConnectionLostError
from dataflow.transport.grpc_connection import GrpcNetwork

_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def header(name: bytes, value: bytes) -> bytes:
    return b"\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_what_is_not_utf8(address: str) -> None:
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/\xff"), (b":authority", b"x")]
    headers += [(b"te", b"trailers"), (b"content-type", b"application/grpc")]
    block = b"".join(header(*each) for each in headers)
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(_OPENING + frame(4, 0, 0, b"") + frame(1, 4, 1, block))
        connection.settimeout(0.5)
        try:
            while connection.recv(4096):
                pass
        except OSError:
            pass


async def exchange() -> None:
    network = GrpcNetwork(token="secret")
    ended = asyncio.Event()

    async def echo(connection):
        try:
            while True:
                await connection.write(await connection.read())
        except ConnectionLostError:
            ended.set()

    address = await network.listen(echo)
    early = await network.dial(address)
    for number in range(3):
        await asyncio.to_thread(call_what_is_not_utf8, address)
        await early.write(b"early")
        assert await early.read() == b"early"
        async with asyncio.timeout(20):
            while True:
                try:
                    late = await network.dial(address)
                    break
                except ConnectionLostError:
                    await asyncio.sleep(0.05)
        await late.write(b"%d" % number)
        assert await late.read() == b"%d" % number
        await late.close()
    ended.clear()
    await network.close()
    async with asyncio.timeout(20):
        with pytest.raises(ConnectionLostError):
            await early.read()
    await early.close()


def test_calls_that_nobody_can_read_end_neither_the_port_nor_the_calls_of_others(capfd):
    asyncio.run(exchange())
    told = capfd.readouterr().err
    assert told.count("there is another one now") == 1
