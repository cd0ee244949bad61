"""Where the cluster's shared token is kept, and which addresses a server may listen on without encryption.

Who has the token may use the cluster; `dataflow.transport.authorization` refuses everybody else. It is never logged.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from pathlib import Path

from dataflow.errors import AuthError, ConfigError

TOKEN_FILE = "token"
"""Name of the token's file in the master's state directory."""

TOKEN_VARIABLE = "AKO_TOKEN"
"""Environment variable that clients and agents take the token from."""


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
        AuthError: there is none, it is no token, or others may read it.
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
    return _sendable(token, str(path))


def find_token(token: str = "", state_dir: Path | None = None) -> str:
    """The token to use: the one given, else that of `AKO_TOKEN`, else that of the state directory.

    Raises:
        AuthError: there is none, or it is no token.
    """
    if token:
        return _sendable(token, "the token given")
    if named := os.environ.get(TOKEN_VARIABLE, ""):
        return _sendable(named, TOKEN_VARIABLE)
    if state_dir is None:
        raise AuthError(what="no token was given", fix=f"set {TOKEN_VARIABLE}, or name the master's state directory")
    return read_token(state_dir)


def _sendable(token: str, where: str) -> str:
    """The token, if a call can show it; the error does not name it."""
    if not (token.isascii() and token.isprintable()):
        raise AuthError(what="a token is one line of ASCII text", where=where, fix="print it with `ako token`")
    return token


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
