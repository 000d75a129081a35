"""Transport between workers with several ranks, with the interface of one between single ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kv_transfer.errors import PeerUnreachable
from kv_transfer.layout import KVLayout
from kv_transfer.planner import Copy
from kv_transfer.sharded.peers import pack_ranks, ranks_of
from kv_transfer.sharded.wire import ForgetPeer, Pool, RankSocket, Write, WriteEnded
from kv_transfer.sharded.writer import RankWriter
from kv_transfer.ticket import Peer
from kv_transfer.transports.base import PeerLost, ReceivedMessage, TransportEvent, WriteDone, WriteFailed


@dataclass(slots=True)
class _Write:
    peer: Peer
    message: bytes
    missing: int
    """Ranks of this worker whose part has not ended."""
    reason: str = ""


@dataclass(slots=True)
class _Connection:
    """A connected peer. `alive`: its ranks that have not been lost."""

    alive: set[str]
    reason: str = ""
    writes: set[int] = field(default_factory=set)


class ShardedTransport:
    """Implements `Transport` on rank 0. Offsets and lengths of copies are those of pages with all heads; of a
    state, the page that it begins at counts.

    A write is done when every rank has written its heads to every rank of the peer that holds them; then its
    message is sent. A peer is lost when all its ranks are lost, since any of them may still write.
    """

    def __init__(
        self, name: str, writer: RankWriter, pool: Peer, links: Sequence[RankSocket], whole: KVLayout
    ) -> None:
        """`writer`, `pool`: of rank 0; `links`: to the other ranks, in order; `whole`: all heads.

        Waits until every rank has opened its pool. Methods raise RankGone once one has ended.
        """
        self._name = name
        self._writer = writer
        self._links = links
        self._whole = whole
        self._ranks = [pool, *(link.expect(Pool).peer for link in links)]
        self._writes: dict[int, _Write] = {}
        self._known: dict[str, _Connection] = {}
        self._next_write = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def metadata(self) -> bytes:
        return pack_ranks(self._ranks)

    def connect(self, peer: Peer) -> None:
        ranks = ranks_of(peer)
        self._require_parts(peer, ranks)
        known = self._known.get(peer.name)
        if known is not None and len(known.alive) < len(ranks):
            raise PeerUnreachable(f"{peer.name} has lost a rank: {known.reason}")
        for rank in ranks:
            self._writer.transport.connect(rank)
        self._known.setdefault(peer.name, _Connection({rank.name for rank in ranks}))

    def write(self, peer: Peer, copies: Sequence[Copy], message: bytes) -> int:
        known = self._require(peer)
        pages = [copy for copy in copies if not copy.is_state]
        size = self._whole.page_bytes
        self._next_write += 1
        number = self._next_write
        part = Write(
            number,
            peer,
            local=self._pages((copy.local, copy.length) for copy in pages),
            remote=self._pages((copy.remote, copy.length) for copy in pages),
            state=next(((copy.local // size, copy.remote // size) for copy in copies if copy.is_state), ()),
        )
        self._writes[number] = _Write(peer, message, missing=len(self._ranks))
        known.writes.add(number)
        for link in self._links:
            link.send(part)
        self._writer.write(part)
        return number

    def send(self, peer: Peer, message: bytes) -> None:
        self._require(peer)
        self._writer.transport.send(ranks_of(peer)[0], message)

    def is_local(self, peer: Peer) -> bool:
        return self._writer.is_local(peer)

    def forget(self, peer: Peer) -> None:
        for link in self._links:
            link.send(ForgetPeer(peer))
        self._writer.forget(peer)

    def poll(self) -> list[TransportEvent]:
        ended, others = self._writer.poll()
        for link in self._links:
            ended += (message for message in link.poll() if isinstance(message, WriteEnded))
        events = [event for end in ended if (event := self._end(end)) is not None]
        for other in others:
            match other:
                case PeerLost(name, reason):
                    self._on_rank_lost(name, reason)
                case ReceivedMessage(b""):
                    pass  # the empty message of a rank's write
                case _:
                    events.append(other)
        return events + self._lost_peers()

    def close(self) -> None:
        self._writer.transport.close()
        for link in self._links:
            link.close()

    def _require_parts(self, peer: Peer, ranks: Sequence[Peer]) -> None:
        """Raises PeerUnreachable unless the pools of `ranks` are shards of the peer's pages."""
        try:
            first = replace(self._whole, tp_size=len(ranks))
        except ValueError as error:
            raise PeerUnreachable(f"{peer.name} has {len(ranks)} ranks: {error}") from error
        for rank in ranks:
            if rank.page_bytes != first.page_bytes or rank.num_pages < peer.num_pages:
                raise PeerUnreachable(f"the pool of {rank.name} is not a shard of the pool of {peer.name}")

    def _require(self, peer: Peer) -> _Connection:
        known = self._known.get(peer.name)
        if known is None:
            raise PeerUnreachable(f"{peer.name} is not connected")
        return known

    def _pages(self, spans: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        """The pages in spans of (offset, length), in order."""
        size = self._whole.page_bytes
        return tuple(
            page for begin, length in spans for page in range(begin // size, (begin + length) // size)
        )

    def _end(self, end: WriteEnded) -> TransportEvent | None:
        """One rank's part of a write has ended."""
        write = self._writes[end.number]
        write.missing -= 1
        write.reason = write.reason or end.reason
        if write.missing:
            return None
        del self._writes[end.number]
        self._known[write.peer.name].writes.discard(end.number)
        if not write.reason:
            try:
                self.send(write.peer, write.message)
            except PeerUnreachable as error:
                write.reason = str(error)
        return WriteFailed(end.number, write.reason) if write.reason else WriteDone(end.number)

    def _on_rank_lost(self, name: str, reason: str) -> None:
        for known in self._known.values():
            if name in known.alive:
                known.alive.discard(name)
                known.reason = reason

    def _lost_peers(self) -> list[TransportEvent]:
        """Peers without a live rank and without a write in flight."""
        lost = [name for name, known in self._known.items() if not known.alive and not known.writes]
        return [PeerLost(name, self._known.pop(name).reason) for name in lost]
