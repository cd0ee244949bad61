"""Settings and counters that both ends of a link share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from dataflow.transport.codec import MAX_MESSAGE_NBYTES


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How links behave.

    Args:
        patience_s: a link that has been down for this long, and whose peer has not been heard, is given up, in seconds.
        hearing_s: so long a peer is given that is heard: from when it answers that it has yet to hear that this node is
            a member, or since the link is down while its own messages come, in seconds.
        handshake_s: dialling and greeting take at most this long, in seconds.
        first_backoff_s: mean pause before the first attempt to reconnect, in seconds; doubles with every attempt.
        max_backoff_s: longest pause between two attempts, in seconds.
        max_message_nbytes: arrays of one message, in bytes.
        max_queued_nbytes: frames of one link that wait for their acknowledgement, in bytes; credit should keep the
            link far below.
        ack_frames: the receiver acknowledges after this many frames,
        ack_nbytes: or this many bytes received, or granted,
        few_nbytes: or, once it is this many bytes,
        ack_delay_s: after this long, in seconds,
        few_delay_s: and in any case this long after the first of them, in seconds: of few bytes a sender misses neither
            credit nor memory. Every packet costs either end some 0.3 ms of processor time, however small it is; credit
            for `ack_nbytes` is back at once.
    """

    patience_s: float = 10.0
    hearing_s: float = 10.0
    handshake_s: float = 5.0
    first_backoff_s: float = 0.02
    max_backoff_s: float = 1.0
    max_message_nbytes: int = MAX_MESSAGE_NBYTES
    max_queued_nbytes: int = 1 << 30
    ack_frames: int = 128
    ack_nbytes: int = 2 << 20
    ack_delay_s: float = 0.02
    few_nbytes: int = 1 << 15
    few_delay_s: float = 0.25

    @property
    def longest_delay_s(self) -> float:
        """For so long an acknowledgement is held back at most, in seconds."""
        return max(self.ack_delay_s, self.few_delay_s)


DEFAULT_OPTIONS = LinkOptions()


@dataclass(slots=True)
class PeerStatistics:
    """What passed between this node and one peer so far; links count it here, and give copies.

    Args:
        sent_nbytes: bytes of packets written, repetitions and handshakes included, gRPC's framing not.
        sent_frames: frames of messages and ends written, repetitions included.
        sent_messages: messages handed over for sending.
        resent_frames: frames written again after a connection broke.
        discarded_messages: messages handed over after the link was lost.
        reconnections: how often a broken connection to the peer was replaced.
        received_nbytes: bytes of packets read.
        received_frames: frames of messages and ends read, duplicates included.
        received_messages: messages delivered.
        duplicate_frames: frames dropped because they had been received before.
    """

    sent_nbytes: int = 0
    sent_frames: int = 0
    sent_messages: int = 0
    resent_frames: int = 0
    discarded_messages: int = 0
    reconnections: int = 0
    received_nbytes: int = 0
    received_frames: int = 0
    received_messages: int = 0
    duplicate_frames: int = 0


async def race(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run until the first of `coroutines` ends, cancel the others, and raise what it raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def report_failure(callback: Callable[..., object], error: Exception) -> str:
    """Show a function's exception that nobody expected through the loop's handler; returns a sentence about it."""
    what = f"{getattr(callback, '__qualname__', callback)} failed: {error!r}"
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})
    return what
