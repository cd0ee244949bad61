"""Who may do what: the cluster's tokens, one per role, where they are kept, and which addresses are safe to listen on.

Who has a token may do what its role allows; `dataflow.transport.authorization` refuses everything else. Tokens are
never logged.
"""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from dataflow.errors import AuthError, ConfigError
from dataflow.home import expanded
from dataflow.runtime.listening_users import require_own_master
from dataflow.transport.addresses import is_loopback
from dataflow.transport.generated import control_pb2

TOKEN_FILE = "token"
"""Name of the file of the token that allows everything, in the master's state directory; see `token_file`."""

TOKEN_VARIABLE = "AKO_TOKEN"
"""Environment variable that clients and agents take the token from."""

AUTHORITY_FILE = "tls/ca.pem"
"""Path of the authority's certificate in the master's state directory, if connections to it are encrypted."""

AUTHORITY_VARIABLE = "AKO_CA"
"""Environment variable that names a copy of that file, for clients and agents on other machines."""


class Role(StrEnum):
    """What the holder of a token is."""

    READ = "read"
    """Looks at jobs, their results, and nodes."""
    SUBMIT = "submit"
    """Looks, submits jobs, and cancels them."""
    NODE = "node"
    """An agent."""
    ADMIN = "admin"
    """Does everything."""


_READING = frozenset({Role.READ, Role.SUBMIT, Role.ADMIN})
_SUBMITTING = frozenset({Role.SUBMIT, Role.ADMIN})

ALLOWED: Mapping[str, frozenset[Role]] = {
    "Submit": _SUBMITTING,
    "Cancel": _SUBMITTING,
    "Adjust": _SUBMITTING,
    "ListJobs": _READING,
    "GetJob": _READING,
    "Watch": _READING,
    "Logs": _READING,
    "Artifacts": _READING,
    "ListNodes": _READING,
    "DrainNode": frozenset({Role.ADMIN}),
    "Attach": frozenset({Role.NODE, Role.ADMIN}),
}
"""Who may call each method of the master. What is not listed needs any of the tokens."""


def permits(role: Role, method: str) -> bool:
    """Whether a role may call a method, given as ``/service/method``."""
    service, _, name = method.removeprefix("/").rpartition("/")
    return service != _MASTER or role in ALLOWED.get(name, frozenset({Role.ADMIN}))


_MASTER = control_pb2.DESCRIPTOR.services_by_name["Master"].full_name


def make_tokens(state_dir: Path) -> dict[str, Role]:
    """The role of every token in the state directory; made at the first start, readable by their owner only."""
    return {_make_token(state_dir, role): role for role in Role}


def token_file(role: Role) -> str:
    """Name of the file of a role's token in the master's state directory."""
    return TOKEN_FILE if role is Role.ADMIN else f"{TOKEN_FILE}.{role}"


def _make_token(state_dir: Path, role: Role) -> str:
    path = state_dir / token_file(role)
    if path.exists():
        return read_token(state_dir, role)
    token = secrets.token_urlsafe(32)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    fresh.rename(path)
    return token


def read_token(state_dir: Path, role: Role = Role.ADMIN) -> str:
    """The token of a role in a master's state directory.

    Raises:
        AuthError: there is none, it is no token, or others may read it.
    """
    path = state_dir / token_file(role)
    try:
        mode = path.stat().st_mode & 0o777
        token = path.read_text(errors="replace").strip()  # what is no text is refused as no token
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
    return _sendable(token, str(path), fix="delete it and restart the master")


def find_token(token: str = "", state_dir: Path | None = None, role: Role = Role.ADMIN, *, plain_at: str = "") -> str:
    """The token to use: the one given, else that of `AKO_TOKEN`, else that of the role in the state directory.

    Args:
        token: the one given; empty if none is.
        state_dir: the master's, where it is on this machine.
        role: see above.
        plain_at: ``host:port`` at which it is to be shown in plain text; empty: it is encrypted.

    Raises:
        AuthError: there is none, it is no token; or it is the state directory's, and who listens there is another user.
    """
    if token:
        return _sendable(token, "the token given")
    if named := os.environ.get(TOKEN_VARIABLE, ""):
        return _sendable(named, TOKEN_VARIABLE)
    if state_dir is None:
        raise AuthError(what="no token was given", fix=f"set {TOKEN_VARIABLE}, or name the master's state directory")
    found = read_token(state_dir, role)
    if plain_at:
        require_own_master(plain_at, state_dir / token_file(role))
    return found


def find_credentials(
    address: str, state_dir: Path | None, token: str = "", role: Role = Role.ADMIN
) -> tuple[str, bytes | None]:
    """The token to show a master, and the certificate of who must have signed the master's, if it must be signed.

    Args:
        address: ``host:port`` of the master.
        state_dir: see `find_token`.
        token: likewise.
        role: likewise.

    Raises:
        AuthError: see `find_token` and `find_authority`; or another user's program listens there, which is shown none.
    """
    authority = find_authority(state_dir)
    return find_token(token, state_dir, role, plain_at="" if authority else address), authority


def _sendable(token: str, where: str, fix: str = "print it with `ako token`") -> str:
    """The token, if a call can show it; the error does not name it."""
    if not (token.isascii() and token.isprintable()):
        raise AuthError(what="a token is one line of ASCII text", where=where, fix=fix)
    return token


def find_authority(state_dir: Path | None = None) -> bytes | None:
    """PEM certificate of the authority that the master must be signed by; None if it is spoken to in plain text.

    It is in the file that `AKO_CA` names; else in the state directory, unless the token is that of `AKO_TOKEN` and not
    one of its own, but of another cluster.

    Raises:
        AuthError: the file that was named cannot be read.
        ConfigError: it is in a home directory that there is not.
    """
    if named := os.environ.get(AUTHORITY_VARIABLE, ""):
        return _read_certificate(expanded(named))
    if state_dir is None:
        return None
    token = os.environ.get(TOKEN_VARIABLE, "")
    return None if token and token not in _own_tokens(state_dir) else read_authority(state_dir)


def _own_tokens(state_dir: Path) -> set[str]:
    """The tokens in a state directory that this user may read."""
    found = set()
    for role in Role:
        with suppress(OSError):
            found.add((state_dir / token_file(role)).read_text(errors="replace").strip())
    return found


def read_authority(state_dir: Path) -> bytes | None:
    """PEM certificate of the authority in a master's state directory; None if there is none.

    Raises:
        AuthError: it cannot be read.
    """
    path = state_dir / AUTHORITY_FILE
    return _read_certificate(path) if path.exists() else None


def _read_certificate(path: Path) -> bytes:
    """What is in a file, if gRPC can trust it: it says in its own words, and later, that it cannot.

    Raises:
        AuthError: it cannot be read, or is no certificate.
    """
    fix = f"copy {AUTHORITY_FILE} of the master's state directory"
    try:
        certificate = path.read_bytes()
    except OSError as error:
        raise AuthError(what="cannot read the authority's certificate", where=str(path), fix=fix) from error
    try:
        text = certificate.decode("ascii", errors="ignore")  # other characters stand in remarks only
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise AuthError(what="the authority's certificate is no PEM certificate", where=str(path), fix=fix) from error
    return certificate


def check_host(host: str, *, insecure: bool, encrypted: bool = False) -> None:
    """Refuse to listen beyond this machine without encryption, unless that was asked for.

    Raises:
        ConfigError: `host` is not a loopback address, and neither holds.
    """
    if not (insecure or encrypted or is_loopback(host)):
        raise ConfigError(
            what="others could read the token and the traffic on this address: there is no encryption",
            got=host,
            fix="make certificates with `ako token --tls`, or say --insecure on a network that you trust",
        )
