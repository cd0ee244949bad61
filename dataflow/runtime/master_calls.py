"""Calls to a master: while one that was there is away they are made again, and streams go on where they were.

Invariant: calls are made, and the channel is closed, on threads of their own. Ctrl-C is raised on the main thread
wherever that is, and after an interrupt inside of gRPC, closing the channel waits for ever (grpc issue 19973).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from dataflow.clock import Clock
from dataflow.errors import AkoError, AuthError, ConfigError, MasterError
from dataflow.runtime.auth import AUTHORITY_FILE, AUTHORITY_VARIABLE, TOKEN_VARIABLE
from dataflow.runtime.wire import CHANNEL_OPTIONS
from dataflow.transport.authorization import token_metadata
from dataflow.transport.encryption import open_channel
from dataflow.transport.generated.control_pb2_grpc import MasterStub

DEADLINE_S = 5.0
"""Seconds within which the master must answer."""

PATIENCE_S = 600.0
"""Seconds for which a master that was there may be away."""

_AGAIN_S = 0.2
_NOTICED_S = 0.5
"""Seconds after which a Ctrl-C is noticed at the latest: one that the system gives to another thread, or just before
this one begins to wait, does not wake it."""

_THREADS = 1000
"""Calls at a time; threads are made when they are needed."""

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class MasterAwayError(MasterError):
    """The master cannot be reached now."""


class MasterCalls:
    """A connection to a master.

    Args:
        address: the master's ``host:port``.
        token: the cluster's token.
        authority: certificate of who must have signed the master's; None: what is said is not encrypted.
        patience_s: for how long a master that has answered may be away.
        clock: the clock.

    Attributes:
        stub: has the methods that can be called.
        answered: whether the master has answered a call.
    """

    def __init__(self, address: str, token: str, authority: bytes | None, *, patience_s: float, clock: Clock) -> None:
        self.answered = False
        self._address, self._patience_s, self._clock = address, patience_s, clock
        self._metadata = token_metadata(token)
        self._channel = open_channel(address, authority, CHANNEL_OPTIONS)
        self.stub: Any = MasterStub(self._channel)  # type: ignore[no-untyped-call]
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ako-client")

    def close(self) -> None:
        """Give up the connection."""
        self._apart(self._channel.close)

    def make(self, method: Any, request: object, extra_s: float = 0.0) -> Any:
        """The reply to a request.

        Args:
            method: one of the stub's.
            request: what it takes.
            extra_s: seconds that the master may take for it, beyond `DEADLINE_S`.

        Raises:
            MasterAwayError: the master cannot be reached, or has been away for too long.
            MasterError, AuthError, ConfigError: it refuses.
        """
        away_s: float | None = None
        while True:
            try:
                with _errors(self._address):
                    reply = self._apart(method, request, timeout=DEADLINE_S + extra_s, metadata=self._metadata)
            except MasterAwayError as error:
                away_s = self._be_patient(error, away_s)
            else:
                self.answered = True
                return reply

    def stream(self, method: Any, request: object) -> Iterator[Any]:
        """The messages of a stream; made again after a break with what `request` asks for by then.

        Raises:
            MasterAwayError, MasterError, AuthError, ConfigError: see `make`.
        """
        away_s: float | None = None
        while True:
            try:
                for message in self._messages(method, request):
                    away_s = None
                    yield message
            except MasterAwayError as error:
                away_s = self._be_patient(error, away_s)
            else:
                return

    def _be_patient(self, error: MasterAwayError, away_s: float | None) -> float:
        """Wait a moment for a master that has been away since `away_s`; since when it has been.

        Raises:
            MasterAwayError: `error`, if it was never there, or has been away for too long.
        """
        now = self._clock.now()
        away_s = now if away_s is None else away_s
        if not self.answered or now - away_s > self._patience_s:
            raise error
        self._clock.sleep(_AGAIN_S)
        return away_s

    def _messages(self, method: Any, request: object) -> Iterator[Any]:
        call = self._apart(method, request, metadata=self._metadata)
        try:
            with _errors(self._address):
                while (message := self._apart(next, call, None)) is not None:
                    yield message
        finally:
            call.cancel()

    def _apart(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What a function gives on another thread; Ctrl-C ends the waiting, not the function."""
        given = self._threads.submit(function, *arguments, **named)
        while True:
            try:
                return given.result(_NOTICED_S)
            except TimeoutError:
                if given.done():
                    return given.result()


@contextmanager
def _errors(address: str) -> Iterator[None]:
    """Turn gRPC's errors into ours."""
    try:
        yield
    except grpc.RpcError as error:
        raise _translated(error, address) from error


def _translated(error: Any, address: str) -> AkoError:
    code, details = error.code(), error.details()
    if code in _AWAY:
        said = (details or "").lower()
        if "certificate is not yet valid" in said or "certificate has expired" in said:
            what = "by this machine's clock the master's certificate is not good yet, or no longer"
            return AuthError(what, where=address, fix="set the clocks of both machines, or restart the master")
        if "handshake" in said or "certificate" in said:
            what = "whoever is there does not show a certificate of this cluster"
            return AuthError(what, where=address, fix=f"set {AUTHORITY_VARIABLE} to the master's {AUTHORITY_FILE}")
        fix = "start it with `ako master`, check the address, or, if it speaks TLS, set " + AUTHORITY_VARIABLE
        return MasterAwayError(what="the master cannot be reached", where=address, fix=fix)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        fix = f"set {TOKEN_VARIABLE} to what the master's token file holds"
        return AuthError(what="the master refuses this token", where=address, fix=fix)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return AuthError(what=details, where=address, fix="use the token of another role; see `ako token --help`")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return ConfigError(what=details)
    return MasterError(what=details or f"the master answered {code.name}", where=address)
