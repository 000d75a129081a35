"""Events of senders and receivers for their worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kv_transfer.ticket import Final, Peer, Ticket

__all__ = [
    "CaughtUp",
    "Drained",
    "EndpointEvent",
    "HandedOver",
    "PushSpan",
    "Ready",
    "ReceiveFailed",
    "ReceiverEvent",
    "Reopened",
    "Reserved",
    "SendFailed",
    "SenderEvent",
]


@dataclass(frozen=True, slots=True)
class PushSpan:
    """One write: when it was started and seen complete, on the worker's clock."""

    begin: float
    end: float
    first_token: int
    num_tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The receiver has every full page that was computed: what is left to send is less than a page, and what
    is computed from now on. A request that runs may be stopped for that."""

    handoff_id: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The receiver verified every page. The sender's pages are no longer read."""

    handoff_id: int
    bytes: int
    pushes: tuple[PushSpan, ...]


@dataclass(frozen=True, slots=True)
class SendFailed:
    """The handoff failed. The sender's pages may be reused: data still read from them is discarded."""

    handoff_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """The sender may be given this ticket."""

    handoff_id: int
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Ready:
    """Every page is here and verified: compute what follows."""

    handoff_id: int
    final: Final
    transfer_s: float
    """From the reservation to the verified last page."""
    exposed_s: float
    """The part of it after the sender had computed its last token: what the handoff costs the client."""


@dataclass(frozen=True, slots=True)
class ReceiveFailed:
    """The handoff failed. Its pages are in quarantine: the sender may still write them."""

    handoff_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Follows every ReceiveFailed, at once or later: the pages may be reused."""

    handoff_id: int


@dataclass(frozen=True, slots=True)
class Reopened:
    """The transport was closed and reopened: peers reach this worker as `peer` from now on."""

    peer: Peer


SenderEvent: TypeAlias = CaughtUp | HandedOver | SendFailed
ReceiverEvent: TypeAlias = Reserved | Ready | ReceiveFailed | Drained
EndpointEvent: TypeAlias = SenderEvent | ReceiverEvent | Reopened
