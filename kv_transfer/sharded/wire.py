"""Frames between rank 0 and the other ranks of a worker, for KV transfer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from kv_transfer.errors import BadMessage
from kv_transfer.handoff.binary import Reader, block
from kv_transfer.sharded.peers import pack_rank, read_rank
from kv_transfer.ticket import Peer

__all__ = ["Digest", "Digests", "Ended", "Forget", "Frames", "Hello", "Message", "Write", "pack"]


@dataclass(frozen=True, slots=True)
class Hello:
    """Rank: address of its pool; only the fields that differ from its worker's are sent."""

    rank: Peer


@dataclass(frozen=True, slots=True)
class Write:
    """From rank 0: write the heads that this rank holds to the peer's ranks that need them."""

    number: int
    peer: Peer
    local: tuple[int, ...]
    remote: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """Rank: its part of the write has ended, completely if `reason` is empty."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """From rank 0: the peer is fenced; abort all writes to its ranks."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Digest:
    """From rank 0: digest this rank's part of these pages."""

    pages: tuple[int, ...]
    tail_tokens: int


@dataclass(frozen=True, slots=True)
class Digests:
    """Rank: digests in the order of the requested pages."""

    digests: tuple[int, ...]


Message: TypeAlias = Hello | Write | Ended | Digest | Digests | Forget

_NUMBER: Final = struct.Struct("<Q")
_KIND: Final = struct.Struct("<B")
_LENGTH: Final = struct.Struct("<I")
_NO_WORKER: Final = Peer("", 0, b"", 0, 0, 0, 0, "")


def pack(message: Message) -> bytes:
    """Encode a message as a frame."""
    number = next(n for n, (kind, _, _) in enumerate(_KINDS) if isinstance(message, kind))
    return block(_KIND.pack(number) + _KINDS[number][1](message))


class Frames:
    """Decodes a stream of bytes into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. Raises BadMessage."""
        self._bytes += data
        messages = []
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                break
            messages.append(_unpack(bytes(self._bytes[_LENGTH.size : end])))
            del self._bytes[:end]
        return messages


def _unpack(frame: bytes) -> Message:
    reader = Reader(frame)
    (number,) = reader.fields(_KIND)
    if number >= len(_KINDS):
        raise BadMessage(f"unknown message kind {number}")
    message: Message = _KINDS[number][2](reader)
    reader.require_end()
    return message


def _pack_hello(message: Hello) -> bytes:
    return pack_rank(message.rank)


def _read_hello(reader: Reader) -> Hello:
    return Hello(read_rank(reader, _NO_WORKER))


def _pack_write(message: Write) -> bytes:
    numbers = _pack_numbers(message.local) + _pack_numbers(message.remote)
    return _NUMBER.pack(message.number) + _pack_peer(message.peer) + numbers


def _read_write(reader: Reader) -> Write:
    (number,) = reader.fields(_NUMBER)
    return Write(number, _read_peer(reader), _read_numbers(reader), _read_numbers(reader))


def _pack_forget(message: Forget) -> bytes:
    return _pack_peer(message.peer)


def _read_forget(reader: Reader) -> Forget:
    return Forget(_read_peer(reader))


def _pack_peer(peer: Peer) -> bytes:
    return _NUMBER.pack(peer.epoch) + block(peer.layout_hash.encode()) + pack_rank(peer)


def _read_peer(reader: Reader) -> Peer:
    (epoch,) = reader.fields(_NUMBER)
    return read_rank(reader, Peer("", epoch, b"", 0, 0, 0, 0, reader.text()))


def _pack_ended(message: Ended) -> bytes:
    return _NUMBER.pack(message.number) + block(message.reason.encode(errors="replace"))


def _read_ended(reader: Reader) -> Ended:
    (number,) = reader.fields(_NUMBER)
    return Ended(number, reader.text())


def _pack_digest(message: Digest) -> bytes:
    return _NUMBER.pack(message.tail_tokens) + _pack_numbers(message.pages)


def _read_digest(reader: Reader) -> Digest:
    (tail_tokens,) = reader.fields(_NUMBER)
    return Digest(_read_numbers(reader), tail_tokens)


def _pack_digests(message: Digests) -> bytes:
    return _pack_numbers(message.digests)


def _read_digests(reader: Reader) -> Digests:
    return Digests(_read_numbers(reader))


def _pack_numbers(numbers: Sequence[int]) -> bytes:
    return block(np.array(numbers, dtype="<u8").tobytes())


def _read_numbers(reader: Reader) -> tuple[int, ...]:
    data = reader.block()
    if len(data) % _NUMBER.size:
        raise BadMessage("an array of numbers has an incomplete last one")
    return tuple(np.frombuffer(data, dtype="<u8").tolist())


_KINDS: Final[list[tuple[type[Message], Callable[[Any], bytes], Callable[[Reader], Message]]]] = [
    (Hello, _pack_hello, _read_hello),
    (Write, _pack_write, _read_write),
    (Ended, _pack_ended, _read_ended),
    (Digest, _pack_digest, _read_digest),
    (Digests, _pack_digests, _read_digests),
    (Forget, _pack_forget, _read_forget),
]
