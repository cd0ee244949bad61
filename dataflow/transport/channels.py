"""Options of gRPC that all channels share, those to a master and those between nodes."""

from __future__ import annotations


def channel_options(message_nbytes: int, connecting_ms: int) -> tuple[tuple[str, int], ...]:
    """Options of a channel, and of the server at its other end.

    Args:
        message_nbytes: largest message, in bytes.
        connecting_ms: for so long an attempt to open the TCP connection goes on, in milliseconds. TCP repeats what
            opens one after 1, 3, 7 and 15 s: an attempt that began in a cut must not outlast it.
    """
    return (
        ("grpc.max_receive_message_length", message_nbytes),
        ("grpc.max_send_message_length", message_nbytes),
        # A TCP connection of its own: others to the same address, such as those of bulk data, must not delay it.
        ("grpc.use_local_subchannel_pool", 1),
        # A proxy for the web ($http_proxy) does not know the cluster.
        ("grpc.enable_http_proxy", 0),
        ("grpc.min_reconnect_backoff_ms", connecting_ms),
    )
