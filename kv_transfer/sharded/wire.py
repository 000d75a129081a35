"""Frames between rank 0 and the other ranks of a worker, for KV transfer."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from kv_transfer.codec import block, pack_one_of, unpack_one_of
from kv_transfer.ticket import Peer


@dataclass(frozen=True, slots=True)
class Hello:
    """Rank: its pool, as a peer would reach it."""

    rank: Peer


@dataclass(frozen=True, slots=True)
class Write:
    """From rank 0: write the heads that this rank holds to the peer's ranks that need them."""

    number: int
    peer: Peer
    local: tuple[int, ...]
    remote: tuple[int, ...]
    state: tuple[int, ...] = ()
    """Where a recurrent state begins, here and there, if the write ends with one."""


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
class DigestState:
    """From rank 0: digest this rank's part of the state that begins at this page."""

    first: int


@dataclass(frozen=True, slots=True)
class Digests:
    """Rank: digests in the order of the requested pages, or of the heads of a state."""

    digests: tuple[int, ...]


Message: TypeAlias = Hello | Write | Ended | Digest | Digests | Forget | DigestState

_KINDS: Final[tuple[type[Message], ...]] = (Hello, Write, Ended, Digest, Digests, Forget, DigestState)
_LENGTH: Final = struct.Struct("<I")


def pack(message: Message) -> bytes:
    """Encode a message as a frame."""
    return block(pack_one_of(_KINDS, message))


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
            messages.append(unpack_one_of(_KINDS, bytes(self._bytes[_LENGTH.size : end])))
            del self._bytes[:end]
        return messages
