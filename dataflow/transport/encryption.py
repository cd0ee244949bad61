"""TLS for gRPC: who may be taken for the other side, and how servers and channels are opened with it or without.

Whom to trust is told by who signed, not by names of hosts, which may change: every certificate is made out to `NAME`.
Invariant: a channel that was given an authority never falls back to plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc
import grpc.aio

NAME: Final = "ako"
"""What every certificate says that its holder is called."""

Options: TypeAlias = Sequence[tuple[str, int | str]]

_OVERRIDE: Final = (("grpc.ssl_target_name_override", NAME),)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and the key to it, both PEM.

    Args:
        certificate: shown to those who dial.
        key: the private key; never leaves those who listen.
    """

    certificate: bytes
    key: bytes


def add_port(server: grpc.aio.Server, address: str, pair: KeyPair | None) -> int:
    """Have a server listen at ``host:port``, encrypted if there is a key pair; returns the port.

    Raises:
        RuntimeError: the port is taken, or the host is not of this machine.
    """
    if pair is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, grpc.ssl_server_credentials([(pair.key, pair.certificate)]))


def open_channel(address: str, authority: bytes | None, options: Options) -> grpc.Channel:
    """A channel to ``host:port``; see `open_aio_channel`."""
    if authority is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), options=(*options, *_OVERRIDE))


def open_aio_channel(address: str, authority: bytes | None, options: Options) -> grpc.aio.Channel:
    """A channel to ``host:port`` for an event loop.

    Args:
        address: who is dialled.
        authority: PEM certificate of who must have signed that of the other side; plain text if None.
        options: of the channel.
    """
    if authority is None:
        return grpc.aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(authority)
    return grpc.aio.secure_channel(address, credentials, options=(*options, *_OVERRIDE))
