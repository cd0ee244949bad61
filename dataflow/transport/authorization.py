"""The token that nodes of a job show each other over gRPC.

Invariant: a call without the token ends before a byte of its body is read, and no error or log names the token.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

KEY = "authorization"
"""Name of the metadata entry that carries the token."""


def token_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Metadata for a call that shows `token`; empty without a token."""
    return () if token is None else ((KEY, f"Bearer {token}"),)


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Ends every call that does not show `token` with UNAUTHENTICATED, in constant time.

    Args:
        token: what callers must show; ASCII.
    """

    def __init__(self, token: str) -> None:
        self._expected = token_metadata(token)[0][1].encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The call's handler, or one that refuses the call."""
        for key, value in handler_call_details.invocation_metadata:
            shown = value if isinstance(value, bytes) else value.encode()
            if key == KEY and hmac.compare_digest(shown, self._expected):
                return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")
