"""Live migration: moves running requests to another worker while they decode.

Computed pages are sent while the request keeps decoding. When the receiver has every full page, the request
is paused after its current token, the last page is sent, and the receiver continues. If the migration fails,
the request continues here. The receiver may have accepted it all the same; both workers then decode it for a
while, with equal tokens, and the router uses one of the streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine.core.request import Request, RequestId
from engine.loop.engine import Engine
from kv_transfer import CaughtUp, HandedOff, SenderEvent, SendFailed, Ticket
from prefill_worker.page_sender import PageSender, final_state
from prefill_worker.reports import OutgoingJob, OutgoingReports

_LONGEST_PAUSE_S: Final = 1.0
"""Timeout of the pause, after which the request continues here. A pause normally takes one message, one page
write and one step; a longer one means that the receiver or the network has a problem."""


@dataclass(slots=True, eq=False)
class _Moving:
    job: OutgoingJob
    ticket: Ticket
    paused_at: float = math.inf
    given_up: bool = False
    """Aborted: the request continues here; writes may still be in flight."""

    @property
    def id(self) -> int:
        return self.ticket.handoff_id


class Migrations:
    """Used by the engine thread only. Methods ignore requests that are not being migrated."""

    def __init__(
        self, engine: Engine, reports: OutgoingReports, clock: Callable[[], float], sender: PageSender
    ) -> None:
        self._engine = engine
        self._reports = reports
        self._clock = clock
        self._sender = sender
        self._moving: dict[int, _Moving] = {}
        """Migrations by handoff id, from the Migrate command until the sender no longer reads the pages."""
        self._by_request: dict[RequestId, _Moving] = {}

    def __len__(self) -> int:
        """Requests whose pages the sender may read."""
        return len(self._moving)

    def __contains__(self, handoff_id: int) -> bool:
        return handoff_id in self._moving

    # ------------------------------------------------------------------------------ from the router

    def begin(self, request_id: RequestId, ticket: Ticket) -> None:
        """Start a migration. Refused at the receiver if the request is not decoding, or migrates already."""
        job = self._reports.job(request_id)
        if job is not None and self._can_move(job.request, ticket):
            self._begin(job, ticket)
        self._sender.attach(ticket)  # refused at the receiver if the handoff is not open

    def cancel(self, handoff_id: int) -> None:
        """Abort the migration; the request continues here. The receiver discards what is still sent."""
        moving = self._moving.get(handoff_id)
        if moving is not None and not moving.given_up:
            self._give_up(moving)

    # ------------------------------------------------------------------------------ from the loop

    def tick(self, now: float) -> None:
        for moving in list(self._moving.values()):
            if now >= moving.paused_at + _LONGEST_PAUSE_S:
                self._give_up(moving)

    def next_wakeup(self) -> float:
        """Time of the next pause timeout; math.inf: none."""
        paused = (moving.paused_at for moving in self._moving.values())
        return min(paused, default=math.inf) + _LONGEST_PAUSE_S

    # ------------------------------------------------------------------------------ the engine's hooks

    def on_computed(self, request: Request, upto: int) -> None:
        moving = self._by_request.get(request.id)
        if moving is not None and not moving.given_up and not request.paused:
            self._sender.computed(moving.id, request, upto)

    def on_step(self) -> None:
        """A step has ended: send the rest of requests that were paused while it was in flight."""
        for moving in self._moving.values():
            if moving.job.request.paused and moving.paused_at == math.inf and not moving.given_up:
                self._send_rest(moving)

    def on_finished(self, request: Request) -> bool:
        """The request ended during its migration. True: the sender still reads its pages."""
        moving = self._by_request.get(request.id)
        if moving is None:
            return False
        if not moving.given_up:
            self._give_up(moving)
        return True

    # ------------------------------------------------------------------------------ from the sender

    def on_transfer(self, event: SenderEvent) -> None:
        moving = self._moving[event.handoff_id]
        request = moving.job.request
        if isinstance(event, CaughtUp):
            if not (moving.given_up or request.paused):
                request.paused = True
                self._send_rest(moving)
            return
        del self._moving[moving.id], self._by_request[request.id]
        request.paused = request.pinned = False
        if request.finish is not None:
            self._engine.release(request)
        match event:
            case HandedOff():
                if request.finish is None:
                    self._engine.abort(request.id)
                self._sender.report(event, moving.job, chunks=())
            case SendFailed():
                self._reports.not_moved()

    # ------------------------------------------------------------------------------ inside

    def _can_move(self, request: Request, ticket: Ticket) -> bool:
        """Whether the request decodes, and the ticket has no more tokens than the request."""
        return (
            request.slot >= 0
            and request.num_pending == 1
            and request.finish is None
            and not request.pinned
            and ticket.handoff_id not in self._moving
            and ticket.num_tokens <= request.num_tokens - request.awaits_token
        )

    def _begin(self, job: OutgoingJob, ticket: Ticket) -> None:
        request = job.request
        request.pinned = True
        self._moving[ticket.handoff_id] = self._by_request[request.id] = _Moving(job, ticket)
        self._sender.open(ticket.handoff_id, keeps_decoding=True)
        self._sender.computed(ticket.handoff_id, request, self._engine.computed(request))

    def _send_rest(self, moving: _Moving) -> None:
        """Send the last page and the state. Does nothing while a step computes the request; see `on_step`."""
        request = moving.job.request
        num_computed = self._engine.computed(request)
        if num_computed < request.num_computed or request.awaits_token:
            return
        moving.paused_at = self._clock()
        final = final_state(moving.job, moving.ticket.num_tokens, num_computed)
        self._sender.finish(moving.id, request, final)

    def _give_up(self, moving: _Moving) -> None:
        # A step would change a state that the sender may still read, so the request then waits for it.
        may_be_read = moving.paused_at < math.inf and moving.job.request.state is not None
        moving.given_up, moving.paused_at = True, math.inf
        moving.job.request.paused = may_be_read
        self._sender.abort(moving.id)
