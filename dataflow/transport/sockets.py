"""What the kernel says of this process's connections over TCP: for how long they had something on its way.

A peer that gets no processor acknowledges messages late, and its kernel acknowledges their bytes all the same: so this
tells a slow link from a slow peer. Linux tells it from 4.10 on; where it does not, nothing is known.

Sockets belong to others, who may close them at any time. So the kernel is asked by number, and no object is made that
would close one of its own accord.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache, lru_cache
from typing import Final

from dataflow.transport.addresses import endpoint, unbracketed

_DESCRIPTORS: Final = "/proc/self/fd"
_NAME_NBYTES: Final = 28  # struct sockaddr_in6; sockaddr_in is shorter
_FAMILY, _PORT = struct.Struct("=H"), struct.Struct(">2xH")
_MAPPED: Final = "::ffff:"  # before an address of IPv4 that a socket of IPv6 has
_INFO_NBYTES: Final = 192  # struct tcp_info of linux/tcp.h, as far as it is read
_ACKED: Final = struct.Struct("=120xQ")  # tcpi_bytes_acked
_TIMES: Final = struct.Struct("=168x2Q")  # tcpi_busy_time and tcpi_rwnd_limited, in microseconds
_ESTABLISHED: Final = 1  # tcpi_state


def busy_s(addresses: Collection[str]) -> dict[str, float]:
    """Seconds in which the connections that there are now to each of `addresses` had bytes on their way, where known.

    The time counts in which the other end's kernel had not acknowledged all bytes that it had room for.
    """
    found: dict[str, float] = {}
    for address, seconds in _connections(_by_endpoint(tuple(addresses))):
        found[address] = found.get(address, 0.0) + seconds
    return found


@lru_cache(maxsize=64)
def _by_endpoint(addresses: tuple[str, ...]) -> dict[str, str]:
    """Addresses by ``host:port`` as sockets have it; those with a name by ``:port``, unless several have that port."""
    found, named = dict[str, str](), list[tuple[str, str]]()
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            found[endpoint(_plain(unbracketed(host)), int(port))] = address
        except ValueError:
            named.append((f":{port}", address))
    count = Counter(port for port, _ in named)
    return found | {port: address for port, address in named if count[port] == 1}


def _plain(host: str) -> str:
    """An address as the kernel has it: without its scope, and that of IPv4 as such.

    Raises:
        ValueError: it is a name.
    """
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address).partition("%")[0]


def _connections(by_endpoint: dict[str, str]) -> Iterator[tuple[str, float]]:
    """Addresses of this process's connections to them, and their times, of which the kernel tells these."""
    if sys.platform != "linux":
        return
    libc = _libc()
    try:
        descriptors = [int(name) for name in os.listdir(_DESCRIPTORS)]
    except OSError:  # no /proc, or no descriptor left to read it with
        return
    for descriptor in descriptors:
        name = _peer_name(libc, descriptor)
        address = name and (by_endpoint.get(endpoint(*name)) or by_endpoint.get(f":{name[1]}"))
        seconds = _busy_s(libc, descriptor) if address else None
        if address and seconds is not None:
            yield address, seconds


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _peer_name(libc: ctypes.CDLL, descriptor: int) -> tuple[str, int] | None:
    """Host and port of the other end of a socket; None if there are none."""
    told, length = ctypes.create_string_buffer(_NAME_NBYTES), ctypes.c_uint32(_NAME_NBYTES)
    if libc.getpeername(descriptor, told, ctypes.byref(length)):
        return None
    name = told.raw
    (family,), (port,) = _FAMILY.unpack_from(name), _PORT.unpack_from(name)
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, name[4:8]), port
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, name[8:24]).removeprefix(_MAPPED), port
    return None


def _busy_s(libc: ctypes.CDLL, descriptor: int) -> float | None:
    """Seconds in which a connection had bytes on their way; None if it has ended, or the kernel does not count them."""
    told, length = ctypes.create_string_buffer(_INFO_NBYTES), ctypes.c_uint32(_INFO_NBYTES)
    failed = libc.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, told, ctypes.byref(length))
    if failed or length.value < _INFO_NBYTES or told.raw[0] != _ESTABLISHED:
        return None
    (acked_nbytes,), (busy_us, full_us) = _ACKED.unpack_from(told), _TIMES.unpack_from(told)
    if not acked_nbytes:  # what opens a connection counts as a byte, if any is counted
        return None
    return float(busy_us - full_us) / 1e6
