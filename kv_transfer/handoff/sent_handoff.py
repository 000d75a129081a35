"""What a sender knows of one handoff."""

from __future__ import annotations

from dataclasses import dataclass, field

from kv_transfer.errors import BadTicket
from kv_transfer.handoff.events import PushSpan
from kv_transfer.handoff.sender_states import SendAction, SendEvent, Sending
from kv_transfer.handoff.state_machine import StateMachine
from kv_transfer.layout import KVLayout
from kv_transfer.ticket import HandoffState, Peer, Ticket


@dataclass(slots=True, eq=False)
class SentHandoff:
    """A handoff on its sender: what was computed, and what of it has been sent."""

    id: int
    machine: StateMachine[Sending, SendEvent, SendAction]
    keeps_decoding: bool
    request_digest: int | None
    receiver: Peer | None = None
    ticket: Ticket | None = None
    secret: int = 0
    """Secret of the ticket, or of a Revoke that arrived before the ticket."""
    pages: tuple[int, ...] = ()
    """The request's block table: of each block a page for every group, or NO_PAGE behind a window."""
    state: tuple[int, ...] = ()
    """Pages that the recurrent state takes; known with `final`."""
    num_tokens: int = 0
    final: HandoffState | None = None
    computed_at: float = 0.0
    """When the last token was computed."""
    pushed: int = 0
    """Index of the first block that has not been sent."""
    digests: list[int] = field(default_factory=list)
    """Digests of the ticket's pages so far; 0 for pages that fell behind a window before they could be sent.
    """
    in_flight: dict[int, PushSpan] = field(default_factory=dict)
    """Spans by write number; `end` is set when the write is complete."""
    pushes: list[PushSpan] = field(default_factory=list)
    reason: str = ""

    def require_fit(self, ticket: Ticket | None, layout: KVLayout) -> None:
        """Raises BadTicket if the computed tokens do not fit the ticket."""
        if ticket is None:
            return
        if self.num_tokens > ticket.max_tokens(layout):
            raise BadTicket(f"{self.num_tokens} tokens are computed, the ticket has pages for fewer")
        final = self.final
        if final is not None and not (final.position == self.num_tokens and final.fits(ticket, layout)):
            known = ticket.num_tokens + len(final.tokens)
            raise BadTicket(
                f"KV ends at token {final.position}; {self.num_tokens} are computed, {known} known"
            )
