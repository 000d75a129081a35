"""What a worker may say about one attempt at one request."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeAlias

from rpc.baton.v1 import worker_pb2

__all__ = ["Event", "Listener", "Loss", "Message", "WorkerLost"]


class Loss(Enum):
    BROKEN = "broken"
    """The stream broke: the process ended, or the way to it."""
    SILENT = "silent"
    """It said nothing for too long, and may still live."""
    PLANNED = "planned"
    """It was ended in order, so that requests go on elsewhere: nobody's failure."""


class WorkerLost(NamedTuple):
    """Nothing more will come from this worker."""

    reason: str
    how: Loss = Loss.BROKEN


Message: TypeAlias = (
    worker_pb2.Tokens
    | worker_pb2.Started
    | worker_pb2.Progress
    | worker_pb2.Reserved
    | worker_pb2.HandedOver
    | worker_pb2.Arrived
    | worker_pb2.Failed
    | WorkerLost
)


class Event(NamedTuple):
    message: Message
    at: float
    """time.monotonic() when the router had it."""


Listener: TypeAlias = Callable[[Event], None]
"""Called on the router's loop, in the order of events; must not raise."""
