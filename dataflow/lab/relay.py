"""A relay: carries frames between two interfaces, those of one direction after a delay. For kernels without netem.

``python -m dataflow.lab.relay NEAR FAR SECONDS`` runs until it is killed; what else ends it, it prints. Frames are
carried as the kernel has them: several packets that it handles as one stay one, with their checksums left to be
computed at the end of their way.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
from collections import deque
from typing import Final

from dataflow.clock import SystemClock

# From linux/if_ether.h and linux/if_packet.h; `socket` has no names for them.
_ETH_P_ALL: Final = 3
_SOL_PACKET: Final = 263
_PACKET_VNET_HDR: Final = 15
_PACKET_IGNORE_OUTGOING: Final = 23
_SO_RCVBUFFORCE: Final = 33

_FRAME_NBYTES: Final = 66_000
_WAITING_NBYTES: Final = 16 << 20
_AT_ONCE: Final = 64

_LOST: Final = (errno.EAGAIN, errno.ENOBUFS, errno.ENETDOWN, errno.EMSGSIZE)


def carry(near: socket.socket, far: socket.socket, delay_s: float) -> None:
    """Carry frames from near to far after a delay, and back at once, for ever.

    Args:
        near: of the host's side; does not block.
        far: of the switch's side; does not block.
        delay_s: seconds that a frame from near to far waits.
    """
    clock = SystemClock()
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        wait_s = max(0.0, waiting[0][0] - clock.now()) if waiting else None
        ready, _, _ = select.select([near, far], [], [], wait_s)
        if far in ready:
            for frame in _arrived(far):
                _send(near, frame)
        if near in ready:
            due_s = clock.now() + delay_s
            waiting.extend((due_s, frame) for frame in _arrived(near))
        while waiting and waiting[0][0] <= clock.now():
            _send(far, waiting.popleft()[1])


def _arrived(source: socket.socket) -> list[bytes]:
    """Frames that have come in, so many at most that the other direction does not wait for long."""
    frames: list[bytes] = []
    try:
        while len(frames) < _AT_ONCE:
            frames.append(source.recv(_FRAME_NBYTES))
    except OSError as error:
        # That an interface was shut is told once, and nothing comes until it is opened again.
        if error.errno not in (errno.EAGAIN, errno.ENETDOWN):
            raise
    return frames


def _send(target: socket.socket, frame: bytes) -> None:
    """Send a frame; it is lost where there is no room, as on a wire, and where the interface is shut or too small."""
    try:
        target.send(frame)
    except OSError as error:
        if error.errno not in _LOST:
            raise


def _open(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _WAITING_NBYTES)
    opened.bind((interface, _ETH_P_ALL))
    opened.setblocking(False)
    return opened


def main() -> None:
    """Run a relay from the command line."""
    near, far, delay = sys.argv[1:]
    # It is a piece of wire: busy hosts must not keep it waiting.
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    carry(_open(near), _open(far), float(delay))


if __name__ == "__main__":
    main()
