"""The shared token: who has it may use the cluster, everybody else is refused before their request is read.

Invariant: no call of any service reaches its servicer without the token, and the token is never logged.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc

from dataflow.errors import AuthError, ConfigError

TOKEN_FILE = "token"
"""Name of the token's file in the master's state directory."""

TOKEN_VARIABLE = "AKO_TOKEN"
"""Environment variable that clients and agents take the token from."""

HEADER = "authorization"


def make_token(state_dir: Path) -> str:
    """The token in the state directory; made at the first start, readable by its owner only."""
    path = state_dir / TOKEN_FILE
    if path.exists():
        return read_token(state_dir)
    token = secrets.token_urlsafe(32)
    fresh = path.with_name(f"{TOKEN_FILE}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    fresh.rename(path)
    return token


def read_token(state_dir: Path) -> str:
    """The token in a master's state directory.

    Raises:
        AuthError: there is none, or others may read it.
    """
    path = state_dir / TOKEN_FILE
    try:
        mode = path.stat().st_mode & 0o777
        token = path.read_text().strip()
    except OSError as error:
        raise AuthError(
            what="cannot read the cluster's token",
            where=str(path),
            fix=f"start the master, set {TOKEN_VARIABLE}, or name the master's state directory",
        ) from error
    if mode & 0o077:
        raise AuthError(what=f"others may read the token (mode {mode:o})", where=str(path), fix=f"chmod 600 {path}")
    if not token:
        raise AuthError(what="the token's file is empty", where=str(path), fix="delete it and restart the master")
    return token


def find_token(token: str = "", state_dir: Path | None = None) -> str:
    """The token to use: the one given, else that of `AKO_TOKEN`, else that of the state directory.

    Raises:
        AuthError: there is none.
    """
    found = token or os.environ.get(TOKEN_VARIABLE, "")
    if found:
        return found
    if state_dir is None:
        raise AuthError(what="no token was given", fix=f"set {TOKEN_VARIABLE}, or name the master's state directory")
    return read_token(state_dir)


def call_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """What a call must carry."""
    return ((HEADER, f"Bearer {token}"),)


def check_host(host: str, *, insecure: bool) -> None:
    """Refuse to listen beyond this machine unless that was asked for.

    Raises:
        ConfigError: `host` is not a loopback address and `insecure` is false.
    """
    if insecure or host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            what="others could read the token and the traffic on this address: there is no encryption",
            got=host,
            fix="listen on 127.0.0.1 and tunnel, or say --insecure on a network that you trust",
        )


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every call without the token, whatever service it is for, before its body is read."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        # A streaming handler is given no request, so none is received.
        self._refusal: Any = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's own handler if the token is right, else one that refuses."""
        if self._holds(handler_call_details.invocation_metadata or ()):
            return await continuation(handler_call_details)
        return self._refusal

    def _holds(self, metadata: Iterable[Any]) -> bool:
        given = [value for key, value in metadata if key == HEADER]
        found = given[0] if len(given) == 1 else ""
        return hmac.compare_digest(found if isinstance(found, bytes) else found.encode(), self._expected)


async def _refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")
