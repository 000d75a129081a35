"""Cached prefixes that other workers ask for: their pages are sent as those of a computed prompt are.

A handoff without a request: its pages stay in the radix cache, locked until the sender no longer reads them.
What is on a tier of this worker comes up first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from engine.core.request import Request
from engine.core.request_state import NO_SLOT
from engine.kv.manager.page_tiers import PromotionStatus
from engine.kv.manager.peer_prefixes import SharedPrefix
from engine.loop.engine import Engine
from kv_transfer import HandedOff, HandoffState, SenderCommands, SenderEvent, Ticket, request_digest
from prefill_worker.page_sender import span_of
from prefill_worker.reports import SharedReport


@dataclass(slots=True, eq=False)
class _Share:
    report: SharedReport
    arrival: float
    ticket: Ticket
    request: Request
    prefix: SharedPrefix | None = None
    """What is sent; None before that is decided."""
    is_sent: bool = False
    """The sender has its pages."""


class SharedPrefixes:
    """Used by the engine thread only."""

    def __init__(self, engine: Engine, clock: Callable[[], float], sender: SenderCommands) -> None:
        self._engine = engine
        self._clock = clock
        self._sender = sender
        self._shares: dict[int, _Share] = {}
        """Shares by handoff id."""

    def __len__(self) -> int:
        """Prefixes of which the sender may read pages, or which come up from a tier."""
        return len(self._shares)

    def __contains__(self, handoff_id: int) -> bool:
        return handoff_id in self._shares

    def share(self, ticket: Ticket, request: Request, report: SharedReport) -> None:
        """Send what is cached of a prompt. If that is nothing, the handoff is refused at the receiver.

        `request` stands for the prompt and its origin, and is never submitted.
        """
        if not request.prompt or not self._engine.kv.cache.enabled or ticket.handoff_id in self._shares:
            self._sender.attach(ticket)
            return
        share = _Share(report, self._clock(), ticket, request)
        self._shares[ticket.handoff_id] = share
        self._advance(share, share.arrival)

    def tick(self, now: float) -> None:
        """Before every step."""
        for share in [share for share in self._shares.values() if share.prefix is None]:
            self._advance(share, now)

    def on_step(self) -> None:
        """A step has completed: pages that were cached while it was in flight are final."""
        for share in list(self._shares.values()):
            if share.prefix is not None and not share.is_sent:
                self._send(share, share.prefix)

    def next_wakeup(self) -> float:
        """Time until which the first of them waits for a tier; math.inf: none does."""
        tiers = self._engine.kv.tiers
        return math.inf if tiers is None else tiers.held_until(s.request for s in self._shares.values())

    def on_transfer(self, event: SenderEvent) -> None:
        """The handoff is complete or has failed: the pages are no longer read."""
        share = self._shares.pop(event.handoff_id)
        assert share.prefix is not None
        self._engine.kv.peers.shared(share.prefix)
        if isinstance(event, HandedOff):
            spans = [span_of(push, share.arrival) for push in event.pushes]
            share.report(event.handoff_id, event.bytes, spans)

    # ------------------------------------------------------------------------------ inside

    def _advance(self, share: _Share, now: float) -> None:
        kv, request, ticket = self._engine.kv, share.request, share.ticket
        if (
            kv.tiers is not None
            and kv.tiers.prospect(request, kv.num_available, now).comes is PromotionStatus.SOON
        ):
            return
        share.prefix = self._engine.kv.peers.share(request, ticket.first_token, ticket.num_tokens)
        kv.stop_waiting(request)
        if share.prefix is None:
            del self._shares[ticket.handoff_id]
            self._sender.attach(ticket)  # refused at the receiver: the handoff is not open
        elif self._engine.step_in_flight is None:
            self._send(share, share.prefix)

    def _send(self, share: _Share, prefix: SharedPrefix) -> None:
        share.is_sent = True
        ticket, request = share.ticket, share.request
        rest = request.tokens(ticket.num_tokens, request.num_tokens)
        weights = str(self._engine.weights).encode()
        digest = request_digest(request.keys(0, ticket.num_tokens), (weights, request.namespace))
        final = HandoffState(tokens=tuple(rest), position=prefix.num_tokens, seed=0, request_digest=digest)
        slot = prefix.hold.checkpoint
        state = () if slot == NO_SLOT else self._engine.pages_of(slot)
        self._sender.open(ticket.handoff_id, ticket.timeout_s)
        self._sender.attach(ticket)
        self._sender.finish(ticket.handoff_id, prefix.pages, prefix.num_tokens, final, state=state)
