"""What can go wrong between two workers' KV pools."""

from __future__ import annotations

__all__ = [
    "BadMessage",
    "BadTicket",
    "LayoutMismatch",
    "PeerFenced",
    "PeerUnreachable",
    "RankGone",
    "RightsRemain",
    "TransferError",
    "TransportMissing",
]


class TransferError(Exception):
    """Base of every error of this package."""


class LayoutMismatch(TransferError):
    """Two workers store KV differently: a page of one means nothing to the other."""


class BadTicket(TransferError):
    """A ticket that contradicts itself, or the pools that it names."""


class BadMessage(TransferError):
    """Bytes that are not a message of this protocol version, or were damaged."""


class PeerUnreachable(TransferError):
    """The transport cannot reach a peer, or lost it."""


class PeerFenced(PeerUnreachable):
    """The peer was declared dead, and is refused from then on even if it is not."""


class TransportMissing(TransferError):
    """The libraries of a transport are not installed here; the message says how to install them."""


class RightsRemain(Exception):
    """A peer may still write this worker's pages, and only the end of this process can prevent that."""


class RankGone(Exception):
    """A process of this worker has ended, and with it a part of every page. No peer's failure: our own."""
