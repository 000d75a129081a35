"""What a role is built from, and what a built role consists of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from engine.engine import Engine
from kv_transfer import Peer
from worker.config import WorkerConfig
from worker.inbox import Inbox
from worker.metrics import WorkerMetrics
from worker.outbox import Outbox
from worker.role import Role

__all__ = ["Assemble", "Assembled", "Parts", "Transfer", "assemble_mixed"]


class Transfer(Protocol):
    """The thread that moves KV: a SenderThread or a ReceiverThread."""

    peer: Peer
    start: Callable[[], None]
    stop: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that a worker has before it has a role."""

    config: WorkerConfig
    epoch: int
    """Drawn at random by every start: a restarted worker is a new peer."""
    engine: Engine
    metrics: WorkerMetrics
    inbox: Inbox = field(default_factory=Inbox)
    outbox: Outbox = field(default_factory=Outbox)
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Assembled:
    role: Role
    transfer: Transfer | None = None
    """None: no KV comes or goes."""


Assemble: TypeAlias = Callable[[Parts], Assembled]


def assemble_mixed(parts: Parts) -> Assembled:
    """A worker that computes its requests from the first token to the last."""
    return Assembled(Role(parts.engine, parts.outbox, parts.metrics, parts.clock))
