"""Binary messages between sender and receiver.

A message is a header, a body and a checksum of both. Decoding checks every length against the available bytes
and raises BadMessage for anything that does not fit exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import xxhash

from kv_transfer import ticket
from kv_transfer.errors import BadMessage
from kv_transfer.handoff.binary import Reader, block
from kv_transfer.ticket import Peer

__all__ = ["Body", "Confirm", "Drain", "Finish", "Message", "Push", "Revoke", "decode", "encode"]


@dataclass(frozen=True, slots=True)
class Push:
    """Sender: pages [first, first + count) of the ticket were written, and can be digested."""

    first: int
    count: int
    tail_tokens: int
    """Valid tokens in the last of them."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Sender: every page was written. Sufficient without the Push messages."""

    final: ticket.Final
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


Body: TypeAlias = Push | Finish | Confirm | Revoke | Drain


@dataclass(frozen=True, slots=True)
class Message:
    handoff_id: int
    source: int
    """Epoch of the sending worker."""
    target: int
    """Epoch of the addressed worker; a restarted worker on the same address ignores the message."""
    secret: int
    """The ticket's secret: messages without it are ignored."""
    body: Body


_MAGIC: Final = b"BKV1"
_HEADER: Final = struct.Struct("<4sBQQQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_PUSH: Final = struct.Struct("<III")
_FINISH: Final = struct.Struct("<IQQdII")
_PEER: Final = struct.Struct("<QQQQI")
_MAX_REASON: Final = 1024


def encode(message: Message) -> bytes:
    kind, pack, _ = next(entry for entry in _KINDS if isinstance(message.body, entry[0]))
    ids = (message.handoff_id, message.source, message.target, message.secret)
    payload = _HEADER.pack(_MAGIC, _NUMBERS[kind], *ids) + pack(message.body)
    return payload + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(payload))


def decode(data: bytes) -> Message:
    """Raises BadMessage for anything that `encode` did not produce."""
    payload, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if len(payload) < _HEADER.size or not payload.startswith(_MAGIC):
        raise BadMessage(f"{len(data)} bytes that are not a message of this protocol version")
    if _CHECKSUM.pack(xxhash.xxh3_64_intdigest(payload)) != checksum:
        raise BadMessage("the message is corrupt: its checksum differs")
    _, number, handoff_id, source, target, secret = _HEADER.unpack_from(payload)
    if not 0 < number <= len(_KINDS):
        raise BadMessage(f"unknown message kind {number}")
    reader = Reader(payload, _HEADER.size)
    body = _KINDS[number - 1][2](reader)
    reader.require_end()
    return Message(handoff_id, source, target, secret, body)


def _reason(text: str) -> bytes:
    return block(text[:_MAX_REASON].encode(errors="replace"))


def _pack_push(body: Push) -> bytes:
    return _PUSH.pack(body.first, body.count, body.tail_tokens)


def _read_push(reader: Reader) -> Push:
    return Push(*reader.fields(_PUSH))


def _pack_finish(body: Finish) -> bytes:
    final = body.final
    digests = np.array(body.digests, dtype="<u8")
    tokens = np.array(final.tokens, dtype="<u4")
    fixed = _FINISH.pack(
        final.position, final.seed, final.request_digest, body.exposed_s, len(tokens), len(digests)
    )
    return fixed + tokens.tobytes() + digests.tobytes()


def _read_finish(reader: Reader) -> Finish:
    position, seed, request_digest, exposed_s, num_tokens, count = reader.fields(_FINISH)
    tokens = np.frombuffer(reader.raw(4 * num_tokens), dtype="<u4")
    digests = np.frombuffer(reader.raw(8 * count), dtype="<u8")
    final = ticket.Final(tuple(tokens.tolist()), position, seed, request_digest)
    return Finish(final, exposed_s, tuple(digests.tolist()))


def _pack_confirm(body: Confirm) -> bytes:
    return b""


def _read_confirm(reader: Reader) -> Confirm:
    return Confirm()


def _pack_revoke(body: Revoke) -> bytes:
    peer = body.receiver
    fixed = _PEER.pack(peer.epoch, peer.base_address, peer.page_bytes, peer.num_pages, peer.device_index)
    texts = block(peer.name.encode()) + block(peer.metadata) + block(peer.layout_hash.encode())
    return fixed + texts + _reason(body.reason)


def _read_revoke(reader: Reader) -> Revoke:
    epoch, base_address, page_bytes, num_pages, device_index = reader.fields(_PEER)
    name, metadata, layout_hash = reader.text(), reader.block(), reader.text()
    peer = Peer(name, epoch, metadata, base_address, page_bytes, num_pages, device_index, layout_hash)
    return Revoke(peer, reader.text())


def _pack_drain(body: Drain) -> bytes:
    return _reason(body.reason)


def _read_drain(reader: Reader) -> Drain:
    return Drain(reader.text())


# A kind's number on the wire is its 1-based index in this table: append, never reorder.
_KINDS: Final[list[tuple[type[Body], Callable[[Any], bytes], Callable[[Reader], Body]]]] = [
    (Push, _pack_push, _read_push),
    (Finish, _pack_finish, _read_finish),
    (Confirm, _pack_confirm, _read_confirm),
    (Revoke, _pack_revoke, _read_revoke),
    (Drain, _pack_drain, _read_drain),
]
_NUMBERS: Final = {kind: number for number, (kind, _, _) in enumerate(_KINDS, start=1)}
