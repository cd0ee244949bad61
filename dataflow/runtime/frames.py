"""Messages between an agent and its job process: four bytes of length, big-endian, then a control message."""

from __future__ import annotations

import asyncio
import struct

from dataflow.errors import WireError
from dataflow.runtime.wire import MESSAGE_NBYTES

_LENGTH = struct.Struct(">I")


def pack_frame(message: bytes) -> bytes:
    """A frame with one serialised message."""
    return _LENGTH.pack(len(message)) + message


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next serialised message; None when the other side has closed, in the middle of a frame or not.

    Of one that has died while it was written to, reading says so, too: as a broken pipe.

    Raises:
        WireError: a frame is longer than `MESSAGE_NBYTES`.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MESSAGE_NBYTES:
            raise WireError(what=f"a frame may have {MESSAGE_NBYTES} bytes", got=length)
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
