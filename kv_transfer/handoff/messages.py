"""Binary messages between sender and receiver.

A message is a header, a body and a checksum of both. Decoding checks every length against the available bytes
and raises BadMessage for anything that does not fit exactly.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import xxhash

from kv_transfer import ticket
from kv_transfer.codec import pack_one_of, unpack_one_of
from kv_transfer.errors import BadMessage
from kv_transfer.ticket import Peer


@dataclass(frozen=True, slots=True)
class Push:
    """Sender: pages [first, first + count) of the ticket were written, and can be digested."""

    first: int
    count: int
    tail_tokens: int
    """Valid tokens in the last of them."""


@dataclass(frozen=True, slots=True)
class Digests:
    """Sender: digests of pages from `first` on, which are or will be written. With them the receiver can use
    these pages if the handoff fails later. Sent between the chunks of a prompt."""

    first: int
    digests: tuple[int, ...]
    request_digest: int
    """As in `Finish.final`."""


@dataclass(frozen=True, slots=True)
class Records:
    """Sender: sidecars of pages that are written, for the receiver to keep when it has verified those."""

    pages: tuple[int, ...]
    """Indices in the ticket."""
    records: bytes
    """One for each of them, of equal size."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Sender: every page was written. Sufficient without the Push messages."""

    final: ticket.HandoffState
    exposed_s: float
    """From the prompt's last computed token to the last written page, on the sender's clock."""
    digests: tuple[int, ...]
    """One per page of the ticket, in order; that of the last page covers its valid tokens only."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Receiver: every digest matches; the receiver decodes from here on."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Receiver: stop writing and answer with Drain. Repeated until answered."""

    receiver: Peer
    """Where to send the Drain: the sender may not have the ticket yet."""
    reason: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Sender: no write of this handoff is in flight, and none will ever start."""

    reason: str


Body: TypeAlias = Push | Digests | Finish | Confirm | Revoke | Drain | Records


@dataclass(frozen=True, slots=True)
class HandoffMessage:
    handoff_id: int
    source: int
    """Epoch of the sending worker."""
    target: int
    """Epoch of the addressed worker; a restarted worker on the same address ignores the message."""
    secret: int
    """The ticket's secret: messages without it are ignored."""
    body: Body


_KINDS: Final[tuple[type[Body], ...]] = (Push, Finish, Confirm, Revoke, Drain, Digests, Records)
_MAGIC: Final = b"BKV4"
_HEADER: Final = struct.Struct("<4sQQQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_MAX_REASON: Final = 1024


def encode(message: HandoffMessage) -> bytes:
    body = message.body
    if isinstance(body, Revoke | Drain):
        body = replace(body, reason=body.reason[:_MAX_REASON])
    ids = (message.handoff_id, message.source, message.target, message.secret)
    payload = _HEADER.pack(_MAGIC, *ids) + pack_one_of(_KINDS, body)
    return payload + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(payload))


def decode(data: bytes) -> HandoffMessage:
    """Raises BadMessage for anything that `encode` did not produce."""
    payload, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if len(payload) <= _HEADER.size or not payload.startswith(_MAGIC):
        raise BadMessage(f"{len(data)} bytes that are not a message of this protocol version")
    if _CHECKSUM.pack(xxhash.xxh3_64_intdigest(payload)) != checksum:
        raise BadMessage("the message is corrupt: its checksum differs")
    _, handoff_id, source, target, secret = _HEADER.unpack_from(payload)
    body = unpack_one_of(_KINDS, payload[_HEADER.size :])
    return HandoffMessage(handoff_id, source, target, secret, body)
