"""NIXL: one-sided writes over UCX (InfiniBand, NVLink, shared memory, TCP), with notifications.

Measured behaviour that this module relies on or works around (NIXL 1.5, UCX 1.23):

- A transfer that reports DONE has been flushed: the bytes are in the peer's memory.
- A started write cannot be stopped. After remove_remote_agent and the release of its handle, a write over TCP
  to a stopped peer continued when the peer was resumed, with the local memory's contents of that time. And
  after a peer removed this agent, this agent's writes still reached it. So removing a peer does not end
  writes: they end when NIXL reports it, or with one of the two processes. Writes of a peer on another host
  also end when this agent is destroyed (`close`), which closes all its sockets and queue pairs.
- A dead peer shows only as an error of the next operation, and an error may have other causes. The lifeline
  distinguishes them.
- With rendezvous, UCX emulates writes over TCP by messages that the peer answers, and aborts a peer whose
  writer died before the answer ("unexpected error: Endpoint timeout", 5 of 6 times). NIXL turns rendezvous
  off, but the environment may turn it on: importing ucxx does.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from common.ports import PortRange
from kv_transfer.cuda_context import Caller
from kv_transfer.errors import PeerUnreachable
from kv_transfer.memory import PoolMemory
from kv_transfer.planner import Copy
from kv_transfer.ticket import Peer
from kv_transfer.transports.base import PeerLost, ReceivedMessage, TransportEvent, WriteDone, WriteFailed
from kv_transfer.transports.lifeline import Lifeline
from kv_transfer.transports.ucx import UcxLink, configure, lifeline_of, pack_metadata, unpack_metadata

_log = logging.getLogger(__name__)

_RENDEZVOUS: Final = "UCX_RNDV_THRESH"


@dataclass(slots=True, eq=False)
class _Link(UcxLink):
    writes: dict[int, Any] = field(default_factory=dict)
    """NIXL handles by write number."""
    failed: list[int] = field(default_factory=list)
    """Failed writes that have not been reported yet."""


class NixlTransport:
    """A NIXL agent without a progress thread, which would occupy a core and slow messages down."""

    def __init__(
        self, name: str, memory: PoolMemory, *, host: str = "127.0.0.1", ports: PortRange | None = None
    ) -> None:
        """`host`: this machine's address for its peers. With 127.0.0.1, UCX uses the loopback device only."""
        self._name = name
        self._memory = memory
        self._kind = "VRAM" if memory.device.startswith("cuda") else "DRAM"
        self._caller = Caller(memory)
        self._caller.enter()  # an agent created without a context never finds the GPU
        self._agent: Any = _create_agent(name, host, ports)
        self._registration = self._agent.register_memory(
            [(memory.address, memory.num_bytes, memory.device_index, "")], self._kind
        )
        self._lifeline = Lifeline(name, host, None if ports is None else ports.halves()[0])
        self._links: dict[str, _Link] = {}
        self._next_write = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def metadata(self) -> bytes:
        return pack_metadata(self._lifeline.address, self._agent.get_agent_metadata())

    def connect(self, peer: Peer) -> None:
        self._caller.enter()
        link = self._links.get(peer.name)
        if link is not None:
            link.require_whole()
            return
        lifeline, metadata = unpack_metadata(peer)
        try:
            agent = self._agent.add_remote_agent(metadata)
        except Exception as error:  # NIXL's errors share no base class
            raise PeerUnreachable(f"cannot connect to {peer.name}: {error}") from error
        if agent not in (peer.name, peer.name.encode()):
            self._remove(str(agent))
            raise PeerUnreachable(f"{peer.name} answers as {agent!r}")
        self._lifeline.watch(peer.name, lifeline)
        self._links[peer.name] = _Link(peer.name)

    def write(self, peer: Peer, copies: Sequence[Copy], message: bytes) -> int:
        link = self._link(peer.name)
        spans = np.array([(copy.local, copy.remote, copy.length) for copy in copies], dtype=np.uint64)
        here = self._descriptors(self._memory.address, self._memory.device_index, spans[:, 0], spans[:, 2])
        there = self._descriptors(peer.base_address, peer.device_index, spans[:, 1], spans[:, 2])
        try:
            handle = self._agent.initialize_xfer("WRITE", here, there, peer.name, message)
        except Exception as error:
            link.break_off(str(error), time.monotonic())
            raise PeerUnreachable(f"cannot write to {peer.name}: {error}") from error
        self._next_write += 1
        link.writes[self._next_write] = handle
        # From here on bytes may be in flight, so an error fails the write instead of being raised.
        with self._breaking(link):
            self._agent.transfer(handle)
        return self._next_write

    def send(self, peer: Peer, message: bytes) -> None:
        link = self._link(peer.name)
        with self._breaking(link):
            self._agent.send_notif(peer.name, message)
        link.require_whole()

    def is_local(self, peer: Peer) -> bool:
        return lifeline_of(peer)[0] == self._lifeline.address[0]

    def forget(self, peer: Peer) -> None:
        self._lifeline.unwatch(peer.name)
        link = self._links.get(peer.name)
        if link is not None:
            link.mark_peer_lost(time.monotonic())

    def poll(self) -> list[TransportEvent]:
        self._caller.enter()
        now = time.monotonic()
        events: list[TransportEvent] = [
            ReceivedMessage(data) for messages in self._agent.get_new_notifs().values() for data in messages
        ]
        for name in self._lifeline.poll(now):
            self._links.setdefault(name, _Link(name)).mark_peer_lost(now)
        for link in list(self._links.values()):
            self._collect(link, events)
            if link.has_settled(now):
                self._reap(link, events)
        return events

    def close(self) -> None:
        if self._agent is None:
            return
        self._caller.enter()
        for link in self._links.values():
            self._release(link)
        self._links.clear()
        with _releasing("registration"):
            self._agent.deregister_memory(self._registration)
        self._agent = None  # closes its sockets and queue pairs
        self._lifeline.close()  # last: peers take it as the end of all writes of this worker

    def _collect(self, link: _Link, events: list[TransportEvent]) -> None:
        """Report completed writes, and collect failed ones."""
        for number, handle in list(link.writes.items()):
            state = "ERR"
            with self._breaking(link):
                state = self._agent.check_xfer_state(handle)
            if state == "PROC":
                continue
            del link.writes[number]
            with _releasing("write handle"):
                handle.release()
            if state == "DONE":
                events.append(WriteDone(number))
            else:
                link.break_off("a write failed", time.monotonic())
                link.failed.append(number)

    def _reap(self, link: _Link, events: list[TransportEvent]) -> None:
        """Remove a broken link once none of its writes is in flight."""
        if link.writes and not link.peer_is_gone:
            return  # NIXL has not reported their end yet
        events += [WriteFailed(number, link.broken) for number in (*link.failed, *link.writes)]
        self._release(link)
        self._remove(link.name)
        del self._links[link.name]
        if link.peer_is_gone:
            events.append(PeerLost(link.name, link.broken))

    def _release(self, link: _Link) -> None:
        for handle in link.writes.values():
            with _releasing("write handle"):
                handle.release()

    def _remove(self, name: str) -> None:
        with _releasing("peer"):  # NIXL may have removed it already
            self._agent.remove_remote_agent(name)

    def _link(self, name: str) -> _Link:
        self._caller.enter()
        link = self._links.get(name)
        if link is None:
            raise PeerUnreachable(f"{name} is not connected")
        link.require_whole()
        return link

    @contextmanager
    def _breaking(self, link: _Link) -> Any:
        """An error of NIXL breaks the link. Catches all, since the errors share no base class."""
        try:
            yield
        except Exception as error:
            link.break_off(str(error) or type(error).__name__, time.monotonic())

    def _descriptors(self, base: int, device: int, offsets: Any, lengths: Any) -> Any:
        table = np.empty((len(offsets), 3), dtype=np.uint64)
        table[:, 0] = offsets + np.uint64(base)
        table[:, 1] = lengths
        table[:, 2] = device
        return self._agent.get_xfer_descs(table, self._kind)


def _create_agent(name: str, host: str, ports: PortRange | None) -> Any:
    configure(host, ports)
    from nixl_cu13 import nixl_agent, nixl_agent_config

    with _no_rendezvous():
        return nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))


@contextmanager
def _no_rendezvous() -> Iterator[None]:
    """Turns rendezvous off in the environment, which UCX reads when an agent is created."""
    before = os.environ.get(_RENDEZVOUS)
    os.environ[_RENDEZVOUS] = "inf"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_RENDEZVOUS]
        else:
            os.environ[_RENDEZVOUS] = before


@contextmanager
def _releasing(what: str) -> Iterator[None]:
    """NIXL raises various errors when something that is released has already gone; they are ignored."""
    try:
        yield
    except Exception as error:
        _log.debug("NIXL: releasing a %s raised %s: %s", what, type(error).__name__, error)
