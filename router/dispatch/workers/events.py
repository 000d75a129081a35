"""Events of a worker about one attempt at a request."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeAlias

from rpc.baton.v1 import worker_pb2


class Loss(Enum):
    BROKEN = "broken"
    """The stream broke: the process has ended, or the connection to it."""
    SILENT = "silent"
    """No heartbeat for too long; the process may still run."""
    ROUTER_LATE = "router late"
    """The router itself was stopped, hung or cut off until the worker ended its session. That is a fault
    of neither the worker nor its requests."""
    PLANNED = "planned"
    """It was drained; its requests are moved. Not counted as a failure."""


class WorkerLost(NamedTuple):
    """No more events will come from this worker."""

    reason: str
    """Does not name the worker."""
    how: Loss = Loss.BROKEN


Message: TypeAlias = (
    worker_pb2.Started
    | worker_pb2.Progress
    | worker_pb2.Encoded
    | worker_pb2.Preempted
    | worker_pb2.Resumed
    | worker_pb2.Reserved
    | worker_pb2.Wanted
    | worker_pb2.HandedOff
    | worker_pb2.Arrived
    | worker_pb2.Failed
)
"""An event that is no output."""


class SessionListener(NamedTuple):
    """Called on the router's loop, in the order of events; must not raise.

    Both take the time at which the router received the event, on time.monotonic().
    """

    event: Callable[[Message | WorkerLost, float], None]
    output: Callable[[worker_pb2.Output, float], None]
    """The hot path: called for every token of the cluster."""
