"""Frames between an agent and its job processes."""

from __future__ import annotations

import asyncio

import pytest

from dataflow.runtime.frames import read_frame


@pytest.mark.parametrize("error", [ConnectionResetError, BrokenPipeError])
def test_connection_that_has_broken_is_one_that_has_ended(error: type[OSError]) -> None:
    async def scene() -> bytes | None:
        reader = asyncio.StreamReader()
        reader.set_exception(error())
        return await read_frame(reader)

    assert asyncio.run(scene()) is None
