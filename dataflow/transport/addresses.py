"""Addresses of nodes: how they are written, and which of them are of this machine alone."""

from __future__ import annotations

import ipaddress


def endpoint(host: str, port: int) -> str:
    """An address as ``host:port``, in which that of IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def stays_here(address: str) -> bool:
    """Whether what is sent to an address, as ``host:port``, crosses no network."""
    return is_loopback(address.rpartition(":")[0].strip("[]"))
