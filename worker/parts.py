"""The objects that the modules of a worker share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from worker.config import WorkerConfig
from worker.session.inbox import Inbox
from worker.session.metrics import WorkerMetrics
from worker.session.outbox import Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    config: WorkerConfig
    epoch: int
    """Random number of this start: a restarted worker is a new peer."""
    engine: Engine
    runner: ModelRunner
    """Runner of the engine, with its model and its KV pool."""
    metrics: WorkerMetrics
    inbox: Inbox = field(default_factory=Inbox)
    outbox: Outbox = field(default_factory=Outbox)
    clock: Callable[[], float] = time.monotonic
