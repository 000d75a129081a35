"""The stage of a running sequence and what it waits for, for `router explain`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final


class Stage(Enum):
    ROUTER = "router"
    """Not sent to a worker yet."""
    QUEUE = "queue"
    """In a worker's queue."""
    PREFILL = "prefill"
    RESERVE = "reserve"
    """The first token was produced; the decode worker has not reserved pages."""
    TRANSFER = "transfer"
    """The first token was produced; KV is being transferred to the decode worker."""
    DECODE = "decode"
    PREEMPTED = "preempted"
    """In a worker's queue again, since its KV pages were freed."""


@dataclass(frozen=True, slots=True)
class RequestStatus:
    stage: Stage
    worker: str = ""
    """The worker that must act next; empty if there is none."""
    waits_for: str = ""
    """budget, pages, slots, policy, transfer, workers, or retry; empty while it is computed."""
    computed_tokens: int = 0
    """Prompt tokens computed, as last reported by the worker."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"stage": self.stage.value}


HELD_BACK: Final = RequestStatus(Stage.ROUTER, waits_for="pages")
"""No decode worker has room for the prompt."""
NO_WORKER: Final = RequestStatus(Stage.ROUTER, waits_for="workers")
PAUSED: Final = RequestStatus(Stage.ROUTER, waits_for="retry")
