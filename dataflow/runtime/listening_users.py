"""Whose program listens at an address of this machine, as Linux tells: before it is shown a token in plain text."""

from __future__ import annotations

import ipaddress
import socket
import sys
from contextlib import suppress
from pathlib import Path

from dataflow.errors import AuthError
from dataflow.transport.addresses import is_loopback, unbracketed

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"
_ROOT = 0


def require_own_master(address: str, token: Path) -> None:
    """Refuse to speak to another user's program, which has taken the port while the master is away.

    Nothing is refused where the system does not tell, or where the address is not of this machine alone.

    Args:
        address: ``host:port``, to be spoken to in plain text.
        token: the file that the token is in: the master is a program of whoever owns it.

    Raises:
        AuthError: neither that user nor root listens there.
    """
    host, _, port = address.rpartition(":")
    if not (is_loopback(host) and port.isdigit() and token.exists()):
        return
    strangers = listening_users(host, int(port)) - {_ROOT, token.stat().st_uid}
    if strangers:
        what = "another user's program listens where the master should; the token was not shown to it"
        fix = "start the master on another --port, and find out what that program is"
        raise AuthError(what, got=f"user {min(strangers)}", where=address, fix=fix)


def listening_users(host: str, port: int) -> set[int]:
    """Numbers of the users whose programs accept connections at an address of this machine; empty if nobody does.

    Args:
        host: a loopback address, or its name.
        port: the port.
    """
    wanted = _reached_at(host)
    users = set()
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, user, *_ = line.split()
                place, _, number = local.rpartition(":")
                if state == _LISTENS and int(number, 16) == port and _address(place) in wanted:
                    users.add(int(user))
    return users


def _reached_at(host: str) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Addresses to listen at for whoever dials a host: its own, and those that stand for all."""
    found: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
    with suppress(OSError):
        found = {ipaddress.ip_address(each[4][0]) for each in socket.getaddrinfo(unbracketed(host), None)}
    return found | {_plain(ipaddress.ip_address(each)) for each in ("0.0.0.0", "::")}


def _address(place: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as the kernel writes it: words of 32 bits in the machine's order."""
    words = [int(place[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(place), 8)]
    return _plain(ipaddress.ip_address(b"".join(words)))


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """That of IPv4 which one of IPv6 stands for, if it does."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
