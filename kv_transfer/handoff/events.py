"""Events of senders and receivers for their worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kv_transfer.ticket import HandoffState, Peer, Ticket


@dataclass(frozen=True, slots=True)
class PushSpan:
    """One write, with its start and the time at which its completion was polled, on the worker's clock."""

    begin: float
    end: float
    first_token: int
    num_tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The receiver has every full computed page; only the last, partly filled page is left to send. Pause the
    request now to complete the handoff."""

    handoff_id: int


@dataclass(frozen=True, slots=True)
class HandedOff:
    """The handoff is complete: the receiver verified every page. The sender's pages are no longer read."""

    handoff_id: int
    bytes: int
    pushes: tuple[PushSpan, ...]


@dataclass(frozen=True, slots=True)
class SendFailed:
    """The handoff failed. The sender's pages may be reused: the receiver discards what is still written."""

    handoff_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """Pages are reserved; the ticket is to be sent to the sender."""

    handoff_id: int
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Ready:
    """Every page has arrived and is verified; the request can be computed from `final.position` on."""

    handoff_id: int
    final: HandoffState
    transfer_s: float
    """From the reservation to the verified last page."""
    exposed_s: float
    """The part of it after the sender's last computed token: the latency that the client sees."""


@dataclass(frozen=True, slots=True)
class ReceiveFailed:
    """The handoff failed. Its pages are in quarantine: the sender may still write them."""

    handoff_id: int
    reason: str
    by_sender: bool = False
    """The sender refused or aborted it, or has ended."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Follows every ReceiveFailed, at once or later: the pages may be reused."""

    handoff_id: int
    verified: int = 0
    """Pages of the ticket, from the first on, that have arrived and have the sender's digests."""


@dataclass(frozen=True, slots=True)
class Reopened:
    """The transport was closed and reopened: peers reach this worker as `peer` from now on."""

    peer: Peer


SenderEvent: TypeAlias = CaughtUp | HandedOff | SendFailed
ReceiverEvent: TypeAlias = Reserved | Ready | ReceiveFailed | Drained
EndpointEvent: TypeAlias = SenderEvent | ReceiverEvent | Reopened
