"""Addresses of nodes: how they are written, and which of them are of this machine alone."""

from __future__ import annotations

import ipaddress


def endpoint(host: str, port: int) -> str:
    """An address as ``host:port``, in which that of IPv6 stands in brackets, as it may do in `host` already."""
    bare = unbracketed(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def unbracketed(host: str) -> str:
    """A host without the brackets around an address of IPv6."""
    return host.removeprefix("[").removesuffix("]")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(unbracketed(host)).is_loopback
    except ValueError:
        return False


def stays_here(address: str) -> bool:
    """Whether what is sent to an address, as ``host:port``, crosses no network."""
    return is_loopback(address.rpartition(":")[0])
