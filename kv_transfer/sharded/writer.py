"""One rank's part of a write: from its pool to the pools of the peer's ranks that hold its heads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kv_transfer.errors import PeerUnreachable
from kv_transfer.layout import KVLayout
from kv_transfer.planner import plan_shard_copies, plan_state_copies
from kv_transfer.sharded.peers import ranks_of
from kv_transfer.sharded.wire import Write, WriteEnded
from kv_transfer.ticket import Peer
from kv_transfer.transports.base import Transport, TransportEvent, WriteDone, WriteFailed

_NO_MESSAGE = b""
"""Rank 0 sends the message of a write when all ranks are done."""


@dataclass(slots=True)
class _Part:
    in_flight: int = 0
    reason: str = ""


class RankWriter:
    def __init__(self, transport: Transport, layout: KVLayout) -> None:
        """`layout`: of this rank's pool."""
        self.transport = transport
        self._layout = layout
        self._parts: dict[int, _Part] = {}
        """Parts by number of the worker's write."""
        self._owners: dict[int, int] = {}
        """Number of the worker's write, by that of the transport's write."""

    @property
    def busy(self) -> bool:
        return bool(self._parts)

    def write(self, write: Write) -> None:
        """Start this rank's part of a write. `poll` reports its end, also if it cannot be started."""
        part = self._parts[write.number] = _Part()
        try:
            ranks = ranks_of(write.peer)
            for index, rank in enumerate(ranks):
                target = replace(self._layout, tp_size=len(ranks), tp_rank=index)
                copies = plan_shard_copies(self._layout, target, write.local, write.remote)
                if write.state:
                    copies += plan_state_copies(self._layout, target, *write.state)
                if copies:
                    self.transport.connect(rank)
                    self._owners[self.transport.write(rank, copies, _NO_MESSAGE)] = write.number
                    part.in_flight += 1
        except PeerUnreachable as error:
            part.reason = str(error)

    def is_local(self, peer: Peer) -> bool:
        return all(self.transport.is_local(rank) for rank in ranks_of(peer))

    def forget(self, peer: Peer) -> None:
        for rank in ranks_of(peer):
            self.transport.forget(rank)

    def poll(self) -> tuple[list[WriteEnded], list[TransportEvent]]:
        """Ended writes, and all other events of the transport."""
        others: list[TransportEvent] = []
        for event in self.transport.poll():
            match event:
                case WriteDone(write):
                    self._end(write, "")
                case WriteFailed(write, reason):
                    self._end(write, reason)
                case _:
                    others.append(event)
        ended = [
            WriteEnded(number, part.reason) for number, part in self._parts.items() if not part.in_flight
        ]
        for end in ended:
            del self._parts[end.number]
        return ended, others

    def _end(self, write: int, reason: str) -> None:
        part = self._parts[self._owners.pop(write)]
        part.in_flight -= 1
        part.reason = part.reason or reason
