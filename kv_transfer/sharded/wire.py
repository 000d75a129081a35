"""Messages between rank 0 and the other ranks of a worker, for KV transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from kv_transfer.message_socket import MessageSocket
from kv_transfer.ticket import Peer


@dataclass(frozen=True, slots=True)
class Pool:
    """Rank, first of all: its pool, as a peer would reach it."""

    peer: Peer


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
class WriteEnded:
    """Rank: its part of the write has ended, completely if `reason` is empty."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetPeer:
    """From rank 0: the peer is fenced; abort all writes to its ranks."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Digest:
    """From rank 0: digest this rank's part of these pages."""

    pages: tuple[int, ...]
    tail_tokens: int
    group: int
    """Group of the last page."""


@dataclass(frozen=True, slots=True)
class DigestState:
    """From rank 0: digest this rank's part of the state that begins at this page."""

    first: int


@dataclass(frozen=True, slots=True)
class RankDigests:
    """Rank: digests in the order of the requested pages, or of the heads of a state."""

    digests: tuple[int, ...]


Message: TypeAlias = Pool | Write | WriteEnded | Digest | RankDigests | ForgetPeer | DigestState

KINDS: Final[tuple[type[Message], ...]] = (
    Pool,
    Write,
    WriteEnded,
    Digest,
    RankDigests,
    ForgetPeer,
    DigestState,
)

RankSocket: TypeAlias = MessageSocket[Message]
