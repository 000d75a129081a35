"""Prefixes of prompts that another worker has cached: asks it to send their KV, and then starts the request.

A handoff without a request: its pages go to the radix cache, where the request finds them. Whatever goes
wrong, the request starts without them. A request waits no longer than computing the prefix would take.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from decode_worker.reports import IncomingJob, IncomingReports
from engine.core.request import RequestId
from engine.kv.manager.arriving_prefixes import ArrivingPrefix, patience_s
from engine.loop.engine import Engine
from kv_transfer import Drained, Peer, Ready, ReceiveFailed, ReceiverCommands, ReceiverEvent, Reserved
from kv_transfer import request_digest as digest_of

log = logging.getLogger(__name__)

Start = Callable[[], None]
"""Starts a request; its errors are reported to the router."""

_ROOM_PATIENCE: Final = 0.5
"""Share of its patience for which a request waits for free pages; the rest is left for the transfer."""


class PullOutcome(Enum):
    """How a pull ended."""

    ARRIVED = "arrived"
    FAILED = "failed"
    """The source had nothing, the transfer failed, or the KV did not verify."""
    LATE = "late"
    """It took longer than computing would have."""
    NO_ROOM = "no_room"
    """There were too few free pages."""
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class _Pull:
    id: int
    """Id of the handoff."""
    job: IncomingJob
    source: Peer
    num_tokens: int
    start: Start
    since: float
    until: float
    """When the request starts in any case."""
    prefix: ArrivingPrefix | None = None
    """None while it waits for free pages."""


class PulledPrefixes:
    """Used by the engine thread only."""

    def __init__(
        self,
        engine: Engine,
        reports: IncomingReports,
        clock: Callable[[], float],
        receiver: ReceiverCommands,
    ) -> None:
        self._engine = engine
        self._reports = reports
        self._clock = clock
        self._receiver = receiver
        self._waiting: dict[int, _Pull] = {}
        """Pulls whose requests wait for them, by handoff id."""
        self._quarantined: dict[int, ArrivingPrefix] = {}
        """Pages of aborted pulls whose source may still write, by handoff id."""

    def __len__(self) -> int:
        """Requests that have not started."""
        return len(self._waiting)

    def __contains__(self, handoff_id: int) -> bool:
        return handoff_id in self._waiting or handoff_id in self._quarantined

    # ------------------------------------------------------------------------------ from the router

    def begin(self, id: int, job: IncomingJob, source: Peer, num_tokens: int, start: Start) -> bool:
        """Wait for the KV of a new request's first `num_tokens` tokens, and call `start` then.

        `id`: handoff id. False: there is nothing to wait for.
        """
        engine, now = self._engine, self._clock()
        missing = min(num_tokens, job.request.num_sought) - engine.kv.sought_tokens(job.request)
        if missing < engine.config.page_size or not engine.kv.cache.enabled or id in self:
            return False
        until = now + patience_s(missing, engine.prefill_rate)
        pull = _Pull(id, job, source, num_tokens, start, since=now, until=until)
        self._waiting[id] = pull
        self._reserve(pull, now)
        return True

    def drop(self, request_id: RequestId) -> bool:
        """Abort the pull of a request that has not started. False if there is none."""
        for pull in self._waiting.values():
            if pull.job.id == request_id:
                self._give_up(pull, PullOutcome.ABORTED)
                return True
        return False

    # ------------------------------------------------------------------------------ from the loop

    def tick(self, now: float) -> None:
        """Before every step."""
        for pull in list(self._waiting.values()):
            if pull.prefix is None:
                self._reserve(pull, now)
            if now >= self._limit(pull):
                self._give_up(pull, PullOutcome.NO_ROOM if pull.prefix is None else PullOutcome.LATE)
                pull.start()

    def next_wakeup(self) -> float:
        """Time of the next timeout; math.inf: none."""
        return min(map(self._limit, self._waiting.values()), default=math.inf)

    # ------------------------------------------------------------------------------ from the receiver

    def on_transfer(self, event: ReceiverEvent) -> None:
        match event:
            case Reserved(handoff_id, ticket):
                # None: aborted meanwhile; the ticket is not needed.
                if (pull := self._waiting.get(handoff_id)) is not None:
                    self._reports.wanted(pull.job.id, ticket)
            case Ready():
                self._on_ready(event)
            case ReceiveFailed(handoff_id, reason):
                if (pull := self._waiting.get(handoff_id)) is not None:
                    log.info("request %s computes its prefix: %s", pull.job.label, reason)
                    self._give_up(pull, PullOutcome.FAILED, by_receiver=True)
                    pull.start()
            case Drained(handoff_id):
                self._drained(handoff_id)

    def _on_ready(self, ready: Ready) -> None:
        pull = self._waiting.pop(ready.handoff_id, None)
        if pull is None:
            # Aborted while the last page arrived: the source has finished writing.
            self._drained(ready.handoff_id)
            return
        assert pull.prefix is not None
        prefix, position = pull.prefix, ready.final.position
        size, stride = self._engine.config.page_size, self._engine.kv.needs.stride
        blocks = max(0, min(position // size, prefix.end) - prefix.first)
        pages = sum(place < (prefix.first + blocks) * stride for place in prefix.places)
        pages += len(self._engine.pages_of(prefix.slot))
        self._engine.kv.peers.arrived(prefix, position)
        self._end(pull, PullOutcome.ARRIVED, blocks * size, pages * pull.source.page_bytes)
        pull.start()

    # ------------------------------------------------------------------------------ inside

    def _limit(self, pull: _Pull) -> float:
        share = _ROOM_PATIENCE if pull.prefix is None else 1.0
        return pull.since + share * (pull.until - pull.since)

    def _reserve(self, pull: _Pull, now: float) -> None:
        """Set pages aside, if there is room."""
        request, size = pull.job.request, self._engine.config.page_size
        prefix = pull.prefix = self._engine.expect(request, pull.num_tokens, pull.id)
        if prefix is None:
            return
        known = request.keys(0, prefix.end * size)
        self._receiver.reserve(
            pull.id,
            pull.source,
            prefix.pages,
            prefix.first * size,
            len(known),
            timeout_s=pull.until - now,
            request_digest=digest_of(known, (str(self._engine.weights).encode(), request.namespace)),
            state=self._engine.pages_of(prefix.slot),
        )

    def _give_up(self, pull: _Pull, outcome: PullOutcome, *, by_receiver: bool = False) -> None:
        """Its pages stay aside until the source has drained."""
        del self._waiting[pull.id]
        self._end(pull, outcome)
        if pull.prefix is None:
            return
        self._engine.kv.arriving.quarantine(pull.prefix)
        self._quarantined[pull.id] = pull.prefix
        if not by_receiver:
            self._receiver.abort(pull.id)

    def _drained(self, handoff_id: int) -> None:
        self._engine.kv.arriving.drained(self._quarantined.pop(handoff_id))

    def _end(self, pull: _Pull, outcome: PullOutcome, num_tokens: int = 0, num_bytes: int = 0) -> None:
        waited_s = self._clock() - pull.since
        self._reports.pulled(pull.job.id, outcome.value, waited_s, num_tokens, num_bytes)
