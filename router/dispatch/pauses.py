"""Which gaps between the tokens of an answer are pauses, and why they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from engine.loop.pauses.causes import Cause
from router.dispatch.workers.arrivals import BatchTiming

PAUSE_S: Final = 0.06
"""Readers notice a pause from here on,"""
USUAL: Final = 2.0
"""where it is this many times the mean gap of the answer."""
_EXPLAINS: Final = 0.25
"""Part of a pause that a cause must account for."""
_MOST: Final = 0.5


class Interruption(Enum):
    """What happened to an answer between two of its tokens, as a cause of the pause."""

    RETRY = "retry"
    """Its worker was lost, or failed."""
    MOVED = "moved"
    """Another worker continues it."""
    PREEMPTED = "preempted"
    """Its worker computed more urgent answers."""
    TRANSFER = "transfer"
    """Its KV went from the prefill worker to the decode worker, after the first token."""


ROUTER: Final = "router"
"""The event loop of the router did something else, or its process did not run."""
NETWORK: Final = "network"
"""The batch of events was late between the worker's stream and this router."""
UNKNOWN: Final = "unknown"
CAUSES: Final = (
    *(cause.value for cause in Cause),
    *(interruption.value for interruption in Interruption),
    ROUTER,
    NETWORK,
    UNKNOWN,
)
"""All causes of pauses: those of a worker's slow steps, and those that only the router can see."""


@dataclass(frozen=True, slots=True)
class StreamPause:
    at: float
    """When it ended, on time.monotonic()."""
    seconds: float
    worker: str
    cause: str
    parts: Mapping[str, float]
    """Seconds by cause, of the slow step in it; empty if there was none."""


def pause_of(
    seconds: float, at: float, worker: str, arrival: BatchTiming, interruption: Interruption | None
) -> StreamPause:
    """A gap of `seconds` before tokens that came `at`, by `arrival`."""
    slow = arrival.slow if arrival.slow_at > at - seconds else None
    parts = {} if slow is None else dict(slow.parts)
    explained = {Cause.SEND.value: arrival.send_s, ROUTER: arrival.loop_s, NETWORK: arrival.network_s}
    if slow is not None:
        # A step that took as long as expected explains all of the pause that it is.
        beyond = slow.seconds if slow.cause == Cause.WORK.value else slow.seconds - slow.expected_s
        explained[slow.cause] = explained.get(slow.cause, 0.0) + beyond
    cause = max(explained, key=explained.__getitem__)
    needed = _EXPLAINS
    if interruption is not None:
        # Every answer is transferred once: that is not why one of them takes long if something else took most
        # of it.
        needed = _MOST if interruption is Interruption.TRANSFER else 1.0
    if explained[cause] <= needed * seconds:
        cause = UNKNOWN if interruption is None else interruption.value
    return StreamPause(at, seconds, worker, cause, parts)
