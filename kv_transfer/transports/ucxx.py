"""UCXX, the maintained Python binding of UCX. It has no one-sided writes, so writes are two-sided.

The writer announces a write and sends its pieces; the reader posts receives directly into its pool, and
acknowledges the write when all have arrived. Slower than NIXL for small pieces (tens of microseconds each).

Behaviour of UCXX 0.52 that this module works around: a dead endpoint cancels its requests by itself, but
closing it crashes the process, so dead endpoints are only dropped; a live one must be closed by
`close_blocking`, since `close` leaves its requests pending forever. `status` of a request is 0 when done, 1
while in progress, negative for errors.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np

from common.ports import PortRange
from kv_transfer.cuda_context import Caller
from kv_transfer.errors import PeerUnreachable, TransportMissing
from kv_transfer.memory import PoolMemory
from kv_transfer.planner import Copy
from kv_transfer.ticket import Peer
from kv_transfer.transports.base import PeerLost, ReceivedMessage, TransportEvent, WriteDone, WriteFailed
from kv_transfer.transports.lifeline import Lifeline
from kv_transfer.transports.ucx import UcxLink, configure, lifeline_of, pack_metadata, unpack_metadata

_CONTROL_TAG: Final = 1
_DATA_TAG: Final = 1 << 63
_IN_PROGRESS: Final = 1
_CLOSE_NS: Final = 100_000_000


class _Kind(IntEnum):
    HELLO = 1
    MESSAGE = 2
    WRITE = 3
    ACK = 4


_FRAME: Final = struct.Struct("<BH")
"""Kind and length of the sender's name, followed by name and body."""
_WRITE: Final = struct.Struct("<QQI")
"""Write number, tag of its pieces, number of pieces."""
_PIECE: Final = np.dtype([("offset", "<u8"), ("length", "<u8")])
_ACK: Final = struct.Struct("<Q")


@dataclass(slots=True, eq=False)
class _Pending:
    """Requests in progress, with the buffers that they use."""

    requests: list[Any]
    buffers: list[Any]
    message: bytes = b""

    @property
    def is_over(self) -> bool:
        return all(request.status != _IN_PROGRESS for request in self.requests)

    @property
    def has_failed(self) -> bool:
        return any(request.status < 0 for request in self.requests)


@dataclass(slots=True, eq=False)
class _Link(UcxLink):
    endpoint: Any = None
    controls: list[_Pending] = field(default_factory=list)
    outgoing: dict[int, _Pending] = field(default_factory=dict)
    """Writes to the peer that it has not acknowledged."""
    incoming: dict[int, _Pending] = field(default_factory=dict)
    """Writes of the peer that are in progress."""

    @property
    def everything(self) -> list[_Pending]:
        return [*self.controls, *self.outgoing.values(), *self.incoming.values()]


class UcxxTransport:
    """Implements `Transport` with a UCX worker, which makes progress only when polled."""

    def __init__(
        self, name: str, memory: PoolMemory, *, host: str = "127.0.0.1", ports: PortRange | None = None
    ) -> None:
        """`host`: this machine's address for its peers. With 127.0.0.1, UCX uses the loopback device only.

        Raises TransportMissing.
        """
        configure(host, ports)
        self._caller = Caller(memory)
        self._caller.enter()
        try:
            from ucxx._lib import arr, libucxx
        except ModuleNotFoundError as error:
            raise TransportMissing(
                "--kv-transport ucxx: ucxx is not installed; use nixl, or in a checkout of Baton:"
                " pip install '.[ucxx]'"
            ) from error

        self._ucx = libucxx
        self._array = arr.Array
        self._name = name
        self._memory = memory
        features = (libucxx.Feature.TAG, libucxx.Feature.WAKEUP)
        self._context: Any = libucxx.UCXContext({"KEEPALIVE_INTERVAL": "1s"}, features)
        self._worker: Any = libucxx.UCXWorker(self._context, False, False)
        self._address: bytes = self._worker.address.tobytes()
        self._lifeline = Lifeline(name, host, None if ports is None else ports.halves()[0])
        self._links: dict[str, _Link] = {}
        self._reading: list[_Pending] = []
        # The reader matches pieces by tag alone, so tags must be unique among all writers.
        self._tags = _DATA_TAG | secrets.randbits(31) << 32
        self._next_write = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def metadata(self) -> bytes:
        return pack_metadata(self._lifeline.address, self._address)

    def connect(self, peer: Peer) -> None:
        self._caller.enter()
        link = self._links.get(peer.name)
        if link is not None:
            link.require_whole()
            return
        self._control(self._dial(peer.name, peer), _Kind.HELLO, self.metadata)

    def write(self, peer: Peer, copies: Sequence[Copy], message: bytes) -> int:
        link = self._link(peer.name)
        self._next_write += 1
        number, tag = self._next_write, self._tags | self._next_write & 0xFFFF_FFFF
        pieces = np.array([(copy.remote, copy.length) for copy in copies], dtype=_PIECE)
        body = _WRITE.pack(number, tag, len(pieces)) + pieces.tobytes() + message
        self._control(link, _Kind.WRITE, body)
        spans = [self._span(copy.local, copy.length) for copy in copies]
        ucx_tag = self._ucx.UCXXTag(tag)
        link.outgoing[number] = _Pending([link.endpoint.tag_send(span, ucx_tag) for span in spans], spans)
        return number

    def send(self, peer: Peer, message: bytes) -> None:
        self._control(self._link(peer.name), _Kind.MESSAGE, message)

    def is_local(self, peer: Peer) -> bool:
        return lifeline_of(peer)[0] == self._lifeline.address[0]

    def forget(self, peer: Peer) -> None:
        self._lifeline.unwatch(peer.name)
        link = self._links.get(peer.name)
        if link is not None:
            link.mark_peer_lost(time.monotonic())

    def poll(self) -> list[TransportEvent]:
        self._caller.enter()
        self._worker.progress()
        events: list[TransportEvent] = []
        self._read(events)
        now = time.monotonic()
        for name in self._lifeline.poll(now):
            self._links.setdefault(name, _Link(name)).mark_peer_lost(now)
        for link in list(self._links.values()):
            self._collect(link, events, now)
            if link.has_settled(now):
                self._reap(link, events)
        return events

    def close(self) -> None:
        self._caller.enter()
        self._links.clear()
        self._reading.clear()
        self._worker = self._context = None  # closes its sockets and queue pairs
        self._lifeline.close()  # last: peers take it as the end of all writes of this worker

    # ---------------------------------------------------------------------------------- links

    def _dial(self, name: str, peer: Peer) -> _Link:
        lifeline, address = unpack_metadata(peer)
        try:
            target = self._ucx.UCXAddress.create_from_buffer(address)
            endpoint = self._worker.create_endpoint_from_worker_address(target, True)
        except Exception as error:  # UCXX's errors, and ValueError for an invalid address
            raise PeerUnreachable(f"cannot connect to {name}: {error}") from error
        self._lifeline.watch(name, lifeline)
        self._links[name] = _Link(name, endpoint=endpoint)
        return self._links[name]

    def _link(self, name: str) -> _Link:
        self._caller.enter()
        link = self._links.get(name)
        if link is None:
            raise PeerUnreachable(f"{name} is not connected")
        link.require_whole()
        return link

    def _collect(self, link: _Link, events: list[TransportEvent], now: float) -> None:
        """Acknowledge completed writes of the peer; mark the link as broken on any error."""
        if link.endpoint is not None and not link.endpoint.alive:
            link.break_off("its connection was lost", now)
        if any(pending.has_failed for pending in link.everything):
            link.break_off("a transfer failed", now)
        link.controls = [pending for pending in link.controls if not pending.is_over]
        for number, pending in list(link.incoming.items()):
            if pending.is_over and not pending.has_failed:
                del link.incoming[number]
                events.append(ReceivedMessage(pending.message))
                if not link.broken:
                    self._control(link, _Kind.ACK, _ACK.pack(number))

    def _reap(self, link: _Link, events: list[TransportEvent]) -> None:
        """Remove a broken link once none of its requests is in progress."""
        if not all(pending.is_over for pending in link.everything):
            # UCX fails requests to a lost peer by itself, but not if the connection was never completed.
            if link.peer_is_gone and link.endpoint.alive:
                link.endpoint.close_blocking(_CLOSE_NS, 1)
            return
        events += [WriteFailed(number, link.broken) for number in link.outgoing]
        del self._links[link.name]
        if link.peer_is_gone:
            events.append(PeerLost(link.name, link.broken))

    # --------------------------------------------------------------------------------- frames

    def _control(self, link: _Link, kind: _Kind, body: bytes) -> None:
        name = self._name.encode()
        frame = np.frombuffer(_FRAME.pack(kind, len(name)) + name + body, dtype=np.uint8)
        array = self._array(frame)
        request = link.endpoint.tag_send(array, self._ucx.UCXXTag(_CONTROL_TAG))
        link.controls.append(_Pending([request], [array]))

    def _read(self, events: list[TransportEvent]) -> None:
        tag, mask = self._ucx.UCXXTag(_CONTROL_TAG), self._ucx.UCXXTagMaskFull
        while (probe := self._worker.tag_probe(tag, mask, True)).matched:
            frame = np.empty(probe.length, dtype=np.uint8)
            request = self._worker.tag_recv_with_handle(self._array(frame), probe)
            self._reading.append(_Pending([request], [frame]))
        arrived = [pending for pending in self._reading if pending.is_over]
        if arrived:
            self._reading = [pending for pending in self._reading if not pending.is_over]
        for pending in arrived:
            if not pending.has_failed:
                self._on_frame(pending.buffers[0].tobytes(), events)

    def _on_frame(self, frame: bytes, events: list[TransportEvent]) -> None:
        """Handle a peer's message. Invalid ones are ignored; the handoff then runs into its deadline."""
        if len(frame) < _FRAME.size:
            return
        kind, length = _FRAME.unpack_from(frame)
        name = frame[_FRAME.size : _FRAME.size + length].decode(errors="replace")
        body = frame[_FRAME.size + length :]
        link = self._links.get(name)
        if kind == _Kind.MESSAGE:
            events.append(ReceivedMessage(body))
        elif kind == _Kind.HELLO and link is None:
            self._answer(name, body)
        elif kind == _Kind.WRITE and link is not None and not link.broken:
            self._receive(link, body)
        elif kind == _Kind.ACK and link is not None and len(body) == _ACK.size:
            (number,) = _ACK.unpack(body)
            sent = link.outgoing.pop(number, None)
            if sent is not None:
                link.controls.append(sent)  # its requests may not be complete yet
                events.append(WriteDone(number))

    def _answer(self, name: str, metadata: bytes) -> None:
        try:
            self._dial(name, Peer(name, 0, metadata, 0, 0, 0, 0, ""))
        except PeerUnreachable:
            return  # it has disconnected

    def _receive(self, link: _Link, body: bytes) -> None:
        """Post receives for an announced write. A write outside the pool is ignored."""
        if len(body) < _WRITE.size:
            return
        number, tag, count = _WRITE.unpack_from(body)
        end = _WRITE.size + count * _PIECE.itemsize
        if len(body) < end or not tag & _DATA_TAG:
            return
        pieces = np.frombuffer(body[_WRITE.size : end], dtype=_PIECE)
        limit = self._memory.num_bytes
        if (pieces["offset"] > limit).any() or (pieces["length"] > limit - pieces["offset"]).any():
            return
        spans = [self._span(offset, length) for offset, length in _pairs(pieces)]
        ucx_tag = self._ucx.UCXXTag(tag)
        requests = [link.endpoint.tag_recv(span, ucx_tag) for span in spans]
        link.incoming[number] = _Pending(requests, spans, message=body[end:])

    def _span(self, offset: int, length: int) -> Any:
        """A part of the pool as a UCXX array, without a copy."""
        if self._memory.view is not None:
            return self._array(np.frombuffer(self._memory.host_bytes()[offset : offset + length], np.uint8))
        return self._array(_DeviceSpan(self._memory.address + offset, length))


def _pairs(pieces: Any) -> Iterable[tuple[int, int]]:
    return zip(pieces["offset"].tolist(), pieces["length"].tolist(), strict=True)


class _DeviceSpan:
    """Bytes on a GPU, as an object with the CUDA array interface."""

    def __init__(self, address: int, length: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
