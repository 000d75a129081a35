"""What a router and a worker agree on for the stream between them."""

from __future__ import annotations

from typing import Final

import grpc

ROUTER_METADATA: Final = "baton-router"
"""Metadata key under which a router names itself to a worker."""
BEAT_S: Final = 1.0
"""Interval of a router's heartbeats."""
LEASE_S: Final = 10.0
"""Silence of a router after which a worker ends its session: longer than the pauses of a loaded router."""
ROUTER_LATE: Final = grpc.StatusCode.ABORTED
"""Status of a session that the worker ended because of the router: it was silent, or left events unread."""
