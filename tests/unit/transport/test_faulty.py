"""Declared faults strike when, where and as often as they say."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from dataflow.transport.base import Connection, ConnectionLostError
from dataflow.transport.faulty import CutAfter, Delay, Fault, FaultyNetwork, Refuse
from dataflow.transport.memory import MemoryNetwork


async def echo(connection: Connection) -> None:
    while True:
        await connection.write(await connection.read())


async def packets_until_cut(connection: Connection) -> int:
    """Packets written and echoed, both counted, before the connection breaks; at most 20."""
    carried = 0
    try:
        for _ in range(10):
            await connection.write(b"x")
            carried += 1
            await connection.read()
            carried += 1
    except ConnectionLostError:
        return carried
    finally:
        await connection.close()
    return carried


def carried_by(faults: tuple[Fault, ...], pairs: list[tuple[int, int]]) -> list[int]:
    async def body() -> list[int]:
        network = FaultyNetwork(MemoryNetwork(), faults, np.random.default_rng(0))
        addresses = [await network.at(node).listen(echo) for node in range(3)]
        counts = []
        for source, target in pairs:
            try:
                connection = await network.at(source).dial(addresses[target])
            except ConnectionLostError:
                counts.append(-1)
            else:
                counts.append(await packets_until_cut(connection))
        await network.close()
        return counts

    return asyncio.run(body())


def test_cut_after_loses_that_packet_and_strikes_the_given_number_of_times() -> None:
    assert carried_by((CutAfter(frames=5, times=2),), [(0, 1)] * 3) == [4, 4, 20]


def test_cut_after_in_reading_direction_loses_the_packet_read() -> None:
    assert carried_by((CutAfter(frames=4),), [(0, 1)]) == [3]


def test_faults_on_a_pair_leave_other_pairs_alone() -> None:
    faults = (CutAfter(frames=3, times=9, on=(0, 1)), Refuse(times=1, on=(2, 1)))
    assert carried_by(faults, [(0, 1), (1, 0), (0, 2), (2, 1), (2, 1)]) == [2, 20, 20, -1, 20]


def test_refuse_fails_the_given_number_of_dials() -> None:
    assert carried_by((Refuse(times=2),), [(0, 1), (0, 2), (0, 1)]) == [-1, -1, 20]


def test_delay_waits_within_its_bounds_before_each_packet() -> None:
    pauses: list[float] = []

    async def sleep(duration_s: float) -> None:
        pauses.append(duration_s)

    async def body() -> None:
        network = FaultyNetwork(MemoryNetwork(), (Delay(1.0, 3.0),), np.random.default_rng(0), sleep)
        connection = await network.at(0).dial(await network.at(1).listen(echo))
        assert await packets_until_cut(connection) == 20
        await network.close()

    asyncio.run(body())
    assert len(pauses) == 20
    assert min(pauses) >= 1.0
    assert max(pauses) <= 3.0
    assert len(set(pauses)) == 20


def test_dial_at_an_unknown_address_is_lost() -> None:
    async def body() -> None:
        with pytest.raises(ConnectionLostError, match="nobody listens at memory:9"):
            await MemoryNetwork().dial("memory:9")

    asyncio.run(body())
