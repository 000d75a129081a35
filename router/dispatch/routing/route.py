"""The workers of one attempt, as the selector chooses them and attempts use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from router.dispatch.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2

Pick: TypeAlias = Callable[[worker_pb2.Role], WorkerSession]
"""Returns the worker for the prompt (ROLE_PREFILL) or for decoding. Raises AttemptFailed."""


OnTransfer: TypeAlias = Callable[[str, str, int, float], None]
"""(source, destination, bytes, seconds): KV was sent between two sessions; seconds with a write in flight."""


@dataclass(frozen=True, slots=True)
class CachedElsewhere:
    """KV that the worker which computes the prompt gets first."""

    session: WorkerSession
    """Session of the worker that has it."""
    num_tokens: int
    """From the beginning of the prompt."""


class Claim(Protocol):
    """Room reserved on a decode worker until the sequence is sent to one."""

    def end(self) -> bool:
        """Give the room back. False: that was done before."""


OnPromotion: TypeAlias = Callable[[str, int, float], None]
"""(session, tokens, seconds): KV came up from a worker's tiers."""


def _ignore_promotion(session: str, tokens: int, seconds: float) -> None:
    pass


def _ignore(source: str, destination: str, num_bytes: int, seconds: float) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Route:
    """The workers of one attempt."""

    pick: Pick
    is_local: bool
    """One worker computes everything: `pick(ROLE_DECODE)`."""
    why: str
    """The decision in one line, for logs and `router explain`."""
    source: CachedElsewhere | None = None
    claim: Claim | None = None
    """Ends when the decode worker is picked."""
    on_transfer: OnTransfer = _ignore
    on_promotion: OnPromotion = _ignore_promotion
    may_wait: bool = True
    """Whether the handoff may wait for free pages on the decode worker. Where every worker can be source and
    target, two workers with full pools could deadlock: each holds KV until the other frees pages."""
