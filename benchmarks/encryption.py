"""What TLS costs on the connections between nodes: processor seconds per gigabyte of both ends, and per connection.

    python benchmarks/encryption.py [--repeats 5] [--megabytes 200]

Both ends are in this process, on loopback. Plain and encrypted runs alternate; the smallest of each counts.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from dataflow.clock import SystemClock
from dataflow.runtime.certificates import job_pair
from dataflow.transport.base import Connection
from dataflow.transport.encryption import KeyPair
from dataflow.transport.grpc_connection import GrpcNetwork

SIZES = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
CONNECTIONS = 20


async def sent_s(pair: KeyPair | None, size: int, nbytes: int) -> float:
    """Processor seconds of sending so many bytes in packets of one size."""
    done = asyncio.Event()
    count = max(1, nbytes // size)

    async def accept(connection: Connection) -> None:
        for _ in range(count):
            await connection.read()
        done.set()

    network = GrpcNetwork("token", pair=pair)
    connection = await network.dial(await network.listen(accept))
    packet, began = bytes(size), time.process_time()
    for _ in range(count):
        await connection.write(packet)
    await done.wait()
    took = time.process_time() - began
    await connection.close()
    await network.close()
    return took


async def dialled_s(pair: KeyPair | None) -> float:
    """Processor seconds of one connection."""

    async def accept(connection: Connection) -> None:
        await connection.read()

    network = GrpcNetwork("token", pair=pair)
    address, began = await network.listen(accept), time.process_time()
    for _ in range(CONNECTIONS):
        await (await network.dial(address)).close()
    took = time.process_time() - began
    await network.close()
    return took / CONNECTIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=200)
    options = parser.parse_args()
    nbytes = options.megabytes * 1_000_000
    ways = (None, job_pair(SystemClock().wall()))
    for size in SIZES:
        runs = [[asyncio.run(sent_s(pair, size, nbytes)) for pair in ways] for _ in range(options.repeats)]
        plain, encrypted = (min(column) / nbytes * 1e9 for column in zip(*runs, strict=True))
        print(f"{size >> 10:5} KiB: plain {plain:.2f} s/GB, TLS {encrypted:.2f} s/GB, {encrypted / plain:.2f} times")
    runs = [[asyncio.run(dialled_s(pair)) for pair in ways] for _ in range(options.repeats)]
    plain, encrypted = (min(column) * 1e3 for column in zip(*runs, strict=True))
    print(f"a connection: plain {plain:.1f} ms, TLS {encrypted:.1f} ms")


if __name__ == "__main__":
    main()
