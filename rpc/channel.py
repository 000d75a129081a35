"""gRPC channels, and options shared by clients and servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc

from rpc.tls import NAME

__all__ = ["CLIENT_OPTIONS", "MAX_MESSAGE_BYTES", "SERVER_OPTIONS", "Endpoint", "connect"]

Options: TypeAlias = tuple[tuple[str, int], ...]

MAX_MESSAGE_BYTES: Final = 64 << 20
"""A prompt of ten million tokens; gRPC's default of 4 MiB ends at less than one million."""

_KEEPALIVE_MS: Final = 10_000
_KEEPALIVE_TIMEOUT_MS: Final = 10_000

CLIENT_OPTIONS: Final[Options] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A peer that lost power sends no FIN; only keepalive pings detect that.
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Only the router knows whether a request may be sent twice.
    ("grpc.enable_retries", 0),
    # Workers are addressed directly; a proxy from the environment cannot reach them.
    ("grpc.enable_http_proxy", 0),
    # A worker restarted on an old address must not inherit the connect backoff of the one that died.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

SERVER_OPTIONS: Final[Options] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # A client that reads a fast stream measures the bandwidth with pings, many a second; with strikes
    # counted, the server takes that for abuse and hangs up ("too_many_pings").
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two servers on one port would each get half of the connections, silently.
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is, and how to prove who calls and to know who answers."""

    address: str
    """host:port."""
    credentials: grpc.ChannelCredentials | None = None
    """Those of `Identity.call`; None for plaintext."""


def connect(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel to `host:port`. Connects lazily; an unreachable peer fails the first call, not this one.

    `credentials` are those of `Identity.call`; without them there is no encryption and no authentication.
    """
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    # The certificate is known beforehand, byte for byte: it need not name the address, too.
    options = (*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", NAME))
    return grpc.aio.secure_channel(address, credentials, options=options)
