"""Errors of KV transfer."""

from __future__ import annotations


class TransferError(Exception):
    """Base class of the errors of this package."""


class LayoutMismatch(TransferError):
    """Two workers have different KV layouts, so their pages are not interchangeable."""


class BadTicket(TransferError):
    """A ticket that is inconsistent, or does not match the pools it refers to."""


class BadMessage(TransferError):
    """Bytes that are not a valid message of this protocol version."""


class PeerUnreachable(TransferError):
    """The transport cannot reach a peer, or lost it."""


class PeerFenced(PeerUnreachable):
    """The peer was fenced: it was declared dead, and is refused even if it still runs."""


class TransportMissing(TransferError):
    """The libraries of a transport are not installed here; the message says how to install them."""


class RightsRemain(Exception):
    """A peer may still write this worker's pages, and only the end of this process can prevent that."""


class RankGone(ConnectionError):
    """Another rank of this worker has ended, so the worker must end. Not a failure of a peer."""
