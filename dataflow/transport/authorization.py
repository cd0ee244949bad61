"""The tokens that callers show over gRPC.

Invariant: a call without a token that allows it ends before a byte of its body is read, and no error or log names one.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

KEY = "authorization"
"""Name of the metadata entry that carries the token."""


def token_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Metadata for a call that shows `token`; empty without a token."""
    return () if token is None else ((KEY, f"Bearer {token}"),)


Permits = Callable[[str], bool]
"""Whether a method, ``/service/method``, may be called."""


def everything(_method: str) -> bool:
    """Permits every method."""
    return True


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Ends calls that show none of the tokens with UNAUTHENTICATED, and others that theirs does not permit.

    How long that takes tells nothing about the tokens: what is shown is compared to all of them, in constant time.

    Args:
        tokens: what callers may show, ASCII, and what each permits.
    """

    def __init__(self, tokens: Mapping[str, Permits]) -> None:
        self._tokens = [(token_metadata(token)[0][1].encode(), permits) for token, permits in tokens.items()]

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The call's handler, or one that refuses the call."""
        known: list[Permits] = []
        for key, value in handler_call_details.invocation_metadata:
            shown = value if isinstance(value, bytes) else value.encode()
            if key == KEY:
                known += [permits for token, permits in self._tokens if hmac.compare_digest(shown, token)]
        if any(permits(handler_call_details.method) for permits in known):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_forbid if known else _refuse)


async def _refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")


async def _forbid(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the role of this token does not allow that")
