"""gRPC channels, and options shared by clients and servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc

from rpc.tls import NAME

Options: TypeAlias = tuple[tuple[str, int], ...]

MAX_MESSAGE_BYTES: Final = 1 << 30
"""Enough for a hundred images of a thousand tokens each, in pixels of 32 bits."""

_KEEPALIVE_MS: Final = 10_000
_KEEPALIVE_TIMEOUT_MS: Final = 10_000

CLIENT_OPTIONS: Final[Options] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A peer that lost power sends no FIN; only keepalive pings detect that.
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # The router retries; gRPC must not, since it does not know whether a request may be sent twice.
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
    # A client that reads a fast stream measures the bandwidth with many pings per second. With a limit, the
    # server treats them as abuse and closes the connection ("too_many_pings").
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Otherwise two servers can bind one port, and each silently gets half of the connections.
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a server, and the credentials for mutual authentication."""

    address: str
    """host:port."""
    credentials: grpc.ChannelCredentials | None = None
    """From `Identity.call`; None: plaintext."""


def connect(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel to `host:port`. Connects lazily; an unreachable peer fails the first call, not this one.

    `credentials`: from `Identity.call`; None: no encryption and no authentication.
    """
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    # Only one certificate is accepted, so it need not contain the address.
    options = (*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", NAME))
    return grpc.aio.secure_channel(address, credentials, options=options)
