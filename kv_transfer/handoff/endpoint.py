"""The KV endpoint of a worker: one transport shared by a sender and a receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kv_transfer.errors import BadMessage
from kv_transfer.handoff.events import EndpointEvent, Reopened
from kv_transfer.handoff.messages import (
    Body,
    Confirm,
    Digests,
    Drain,
    Finish,
    HandoffMessage,
    Push,
    Records,
    Revoke,
    decode,
)
from kv_transfer.handoff.port import KVPort
from kv_transfer.handoff.receiver import KVReceiver
from kv_transfer.handoff.sender import KVSender
from kv_transfer.ticket import Peer
from kv_transfer.transports.base import PeerLost, ReceivedMessage, WriteDone, WriteFailed


class KVEndpoint:
    """Polls the transport and dispatches its events to sender and receiver. No thread or clock of its own.

    Completed writes go to the sender, messages are dispatched by kind, and both get lost peers, fences, and
    the reopening of the transport.
    """

    def __init__(
        self, port: KVPort, *, drain_timeout_s: float = 5.0, revoke_interval_s: float = 0.25
    ) -> None:
        """`drain_timeout_s`: see KVSender; `revoke_interval_s`: see KVReceiver."""
        self.sender = KVSender(port, drain_timeout_s=drain_timeout_s)
        self.receiver = KVReceiver(port, revoke_interval_s=revoke_interval_s)
        self._port = port
        self._events: list[EndpointEvent] = []
        self._readers: Final[dict[type[Body], Callable[[HandoffMessage, float], None]]] = {
            Push: self.receiver.on_message,
            Digests: self.receiver.on_message,
            Finish: self.receiver.on_message,
            Records: self.receiver.on_message,
            Drain: self.receiver.on_message,
            Confirm: self.sender.on_message,
            Revoke: self.sender.on_message,
        }

    @property
    def peer(self) -> Peer:
        """This worker, as its peers reach it now."""
        return self._port.peer

    @property
    def num_unexpected(self) -> int:
        """Late, duplicate, foreign or damaged messages so far."""
        return self._port.unexpected.total()

    def is_busy(self, now: float) -> bool:
        """Whether events are likely soon, so that the endpoint should be polled continuously."""
        return self.sender.is_busy() or self.receiver.is_busy(now)

    def poll(self, now: float) -> list[EndpointEvent]:
        """Make progress and return new events. O(live handoffs)."""
        for event in self._port.transport.poll():
            match event:
                case WriteDone(write):
                    self.sender.on_write_done(write, now)
                case WriteFailed(write, reason):
                    self.sender.on_write_failed(write, reason, now)
                case ReceivedMessage(data):
                    self._on_arrival(data, now)
                case PeerLost(name, reason):
                    self._port.peers.disconnected(name)
                    self.sender.on_peer_lost(name, reason, now)
                    self.receiver.on_peer_lost(name, reason, now)
        events, self._events = self._events, []
        return [*events, *self.sender.due(now), *self.receiver.due(now)]

    def fence(self, epoch: int, reason: str, now: float) -> None:
        """Refuse the peer of this epoch from now on: the cluster has declared it dead.

        Its writes may still be in flight, since an unreachable host may come back. If pages are reserved for
        the peer, this worker first closes its own transport, so that no write can land, and then frees them;
        all other handoffs, in both directions, fail and must be retried. A peer on this host is only refused,
        since the end of its process is detected locally.

        Raises RightsRemain, and what opening the transport raises; the process must then exit.
        """
        port = self._port
        for peer in port.peers.fence(epoch):
            if port.transport.is_local(peer):
                continue
            why = f"{peer.name} was declared dead: {reason}"
            if self.receiver.has_lent_to(epoch):
                port.reopen(why)
                self._events.append(Reopened(port.peer))
                self.sender.on_reopened(why, now)
                self.receiver.on_reopened(why, now)
                return
            port.peers.disconnected(peer.name)
            port.transport.forget(peer)
            self.sender.on_peer_lost(peer.name, f"it was declared dead: {reason}", now)

    def close(self) -> None:
        self._port.transport.close()
        self.sender.close()
        self.receiver.close()

    def _on_arrival(self, data: bytes, now: float) -> None:
        try:
            message = decode(data)
        except BadMessage:
            self._port.unexpected["damaged"] += 1
            return
        if self._port.peers.ignores(message.source):
            self._port.unexpected["fenced"] += 1
        elif message.target != self._port.peer.epoch:
            self._port.unexpected["foreign"] += 1
        else:
            self._readers[type(message.body)](message, now)
