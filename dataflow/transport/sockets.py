"""What the kernel says of this process's connections over TCP: for how long they had something on its way.

A peer that gets no processor acknowledges messages late, and its kernel acknowledges their bytes all the same: so this
tells a slow link from a slow peer. Linux alone tells it; elsewhere nothing is known.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from dataflow.transport.addresses import endpoint, unbracketed

_DESCRIPTORS: Final = "/proc/self/fd"
_TCP_INFO_NBYTES: Final = 192
_ACKED: Final = struct.Struct("=120xQ")  # tcpi_bytes_acked of struct tcp_info, linux/tcp.h
_TIMES: Final = struct.Struct("=168x2Q")  # tcpi_busy_time and tcpi_rwnd_limited, in microseconds
_MAPPED: Final = "::ffff:"  # before an address of IPv4 that a socket of IPv6 has


class _Connected(NamedTuple):
    """A connection: the other end, this end's port, and seconds in which bytes were on their way."""

    host: str
    port: int
    own_port: int
    busy_s: float


class SocketTimes:
    """For how long connections to each address had bytes on their way, over all that there were one after the other."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], float] = {}
        self._totals_s: dict[str, float] = {}

    def busy_s(self, addresses: Collection[str]) -> dict[str, float]:
        """Seconds since the start by address, of those of `addresses` to which there is a connection now.

        The time counts in which the other end's kernel had not acknowledged all bytes that it had room for.
        """
        by_endpoint = _by_endpoint(addresses)
        known: dict[tuple[str, int], float] = {}
        for host, port, own_port, busy_s in _connections():
            address = by_endpoint.get(endpoint(host, port)) or by_endpoint.get(endpoint("", port))
            if address is not None:
                known[address, own_port] = busy_s
                newly_s = max(0.0, busy_s - self._known.get((address, own_port), 0.0))
                self._totals_s[address] = self._totals_s.get(address, 0.0) + newly_s
        self._known = known
        return {address: self._totals_s[address] for address, _ in known}


def _by_endpoint(addresses: Collection[str]) -> dict[str, str]:
    """Addresses by ``host:port`` as sockets have it; those with a name by ``:port``, unless several have that port."""
    found, named = dict[str, str](), list[tuple[str, str]]()
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            found[endpoint(str(ipaddress.ip_address(unbracketed(host))), int(port))] = address
        except ValueError:
            named.append((f":{port}", address))
    count = Counter(port for port, _ in named)
    return found | {port: address for port, address in named if count[port] == 1}


def _connections() -> Iterator[_Connected]:
    """Connections of this process over TCP, but for those of which the kernel does not tell the times."""
    if sys.platform != "linux":
        return
    for name in os.listdir(_DESCRIPTORS):
        try:
            if os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                connected = _connected(int(name))
                if connected is not None:
                    yield connected
        except OSError:  # closed meanwhile, or not connected
            continue


def _connected(descriptor: int) -> _Connected | None:
    """What the kernel says of a socket that belongs to somebody else, who may close it at any time."""
    borrowed = socket.socket(fileno=descriptor)
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6) or borrowed.type != socket.SOCK_STREAM:
            return None
        told = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_NBYTES)
        if len(told) < _TCP_INFO_NBYTES:
            return None
        (host, port, *_), (_, own_port, *_) = borrowed.getpeername(), borrowed.getsockname()
    finally:
        borrowed.detach()
    (acked_nbytes,), (busy_us, full_us) = _ACKED.unpack_from(told), _TIMES.unpack_from(told)
    if not acked_nbytes:  # what opens a connection counts as a byte, unless a kernel does not count
        return None
    return _Connected(host.removeprefix(_MAPPED), port, own_port, (busy_us - full_us) / 1e6)
