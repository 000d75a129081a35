"""The receiving half of handoffs: lends pages to a sender, and takes them back only when it is safe."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final as Constant

from kv_transfer.errors import BadMessage, PeerUnreachable, RightsRemain
from kv_transfer.handoff.events import Drained, Ready, ReceiveFailed, ReceiverEvent
from kv_transfer.handoff.messages import Body, Confirm, Drain, Finish, Message, Push, Revoke, decode, encode
from kv_transfer.handoff.receiver_states import RECEIVING, ReceiveAction, ReceiveEvent, Receiving
from kv_transfer.handoff.state_machine import Machine
from kv_transfer.integrity.digest import PageDigester, host_digester
from kv_transfer.layout import KVLayout
from kv_transfer.memory import PoolMemory
from kv_transfer.peer_book import PeerBook
from kv_transfer.ticket import Final, Peer, Ticket
from kv_transfer.transports.base import Arrival, PeerLost, Transport

__all__ = ["KVReceiver"]

_URGENT_S: Constant = 5.0
"""A sender that was asked for so long to stop writing is slow, stopped or unreachable."""


@dataclass(slots=True, eq=False)
class _Handoff:
    machine: Machine[Receiving, ReceiveEvent, ReceiveAction]
    ticket: Ticket
    sender: Peer
    request_digest: int
    reserved_at: float
    digests: dict[int, int] = field(default_factory=dict)
    """By index in the ticket: pages digested as they came, so that only the tail waits for Finish."""
    final: Final | None = None
    exposed_s: float = 0.0
    reason: str = ""
    given_up_at: float | None = None


class KVReceiver:
    """Drives `receiving.RECEIVING` over a transport. Owns no thread and no clock.

    Nothing here raises for what a peer or the network did.
    """

    def __init__(
        self,
        transport: Transport,
        memory: PoolMemory,
        layout: KVLayout,
        epoch: int,
        *,
        digester: PageDigester | None = None,
        reopen: Callable[[], Transport] | None = None,
        revoke_interval_s: float = 0.25,
    ) -> None:
        """`reopen`: registers the same memory anew, under another name; called when `transport` was closed.
        None: that is not possible here. `revoke_interval_s`: how often a sender is asked again to stop
        writing, until it answers.
        """
        self.transport = transport
        self.peer = Peer.of(transport.name, epoch, transport.metadata, memory, layout)
        self.unexpected: Counter[str] = Counter()
        """Late, duplicate, foreign or damaged messages: ignored, but counted, by kind."""
        self._memory = memory
        self._layout = layout
        self._reopen = reopen
        self._peers = PeerBook()
        self._digester = digester or host_digester(memory, layout)
        self._patience = {Receiving.DRAINING: revoke_interval_s}
        self._live: dict[int, _Handoff] = {}
        self._events: list[ReceiverEvent] = []

    @property
    def num_live(self) -> int:
        """Handoffs whose pages a peer may still write."""
        return len(self._live)

    def is_busy(self, now: float) -> bool:
        """Whether something is likely to come soon."""
        return any(h.given_up_at is None or now < h.given_up_at + _URGENT_S for h in self._live.values())

    # ------------------------------------------------------------------------------- commands

    def reserve(
        self,
        handoff_id: int,
        sender: Peer,
        pages: Sequence[int],
        first_token: int,
        num_tokens: int,
        now: float,
        timeout_s: float,
        *,
        request_digest: int,
    ) -> Ticket:
        """Lends `pages`, which will hold tokens [first_token, num_tokens), to `sender`.

        It fails when `timeout_s` pass in which no page arrives. `request_digest` must equal the sender's,
        or it fails. Raises LayoutMismatch, BadTicket
        or PeerUnreachable; then nothing was lent. ValueError: the id is in use.
        """
        if handoff_id in self._live:
            raise ValueError(f"handoff {handoff_id:x} is reserved already")
        ticket = Ticket(
            handoff_id=handoff_id,
            receiver=self.peer,
            epoch=self.peer.epoch,
            layout_hash=self._layout.hash,
            pages=tuple(pages),
            first_token=first_token,
            num_tokens=num_tokens,
            timeout_s=timeout_s,
            secret=secrets.randbits(64),
        )
        ticket.require(self._layout)
        sender.require(self._layout)
        self._peers.require_unfenced(sender)
        self._connect(sender)
        machine = Machine(RECEIVING, Receiving.RESERVED, now, timeout_s, self._patience)
        self._live[handoff_id] = _Handoff(machine, ticket, sender, request_digest, reserved_at=now)
        return ticket

    def abort(self, handoff_id: int, now: float) -> None:
        """Gives a handoff up: ReceiveFailed at once, Drained when the sender has stopped writing."""
        handoff = self._live.get(handoff_id)
        if handoff is not None:
            self._fire(handoff, ReceiveEvent.ABORT, now, "aborted by the receiver")

    def fence(self, epoch: int, reason: str, now: float) -> None:
        """Another authority declared the peer of that epoch dead: it is refused from now on.

        That is no proof that its writes have ended: a host that was only cut off may come back with writes
        under way. If pages are lent to it, this worker closes its own side first, so that no write can land,
        and then frees them. Handoffs from other peers fail by that, too, and are to be tried again. A peer
        on this host is only refused: its end is known by itself.

        Raises RightsRemain, and what `reopen` raises: then this process has to end.
        """
        for peer in self._peers.fence(epoch):
            if self.transport.is_local(peer):
                continue
            if any(handoff.sender.epoch == epoch for handoff in self._live.values()):
                self._cut_off(f"{peer.name} was declared dead: {reason}", now)
                return
            self._peers.disconnected(peer.name)
            self.transport.forget(peer)

    # -------------------------------------------------------------------------------- driving

    def poll(self, now: float) -> list[ReceiverEvent]:
        """Makes progress; O(live handoffs)."""
        for event in self.transport.poll():
            match event:
                case Arrival(data):
                    self._on_message(data, now)
                case PeerLost(name, reason):
                    self._peers.disconnected(name)
                    for handoff in list(self._live.values()):
                        if handoff.sender.name == name:
                            self._fire(handoff, ReceiveEvent.PEER_LOST, now, f"lost {name}: {reason}")
                case _:
                    self.unexpected["write"] += 1
        for handoff in [h for h in self._live.values() if now >= h.machine.deadline]:
            reason = f"deadline passed while {handoff.machine.state.name.lower()}"
            self._fire(handoff, ReceiveEvent.DEADLINE, now, reason)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        self.transport.close()
        self._live.clear()

    def _cut_off(self, reason: str, now: float) -> None:
        if self._reopen is None:
            raise RightsRemain(f"{reason}, and may still write pages of this worker")
        self.transport.close()
        self._peers.disconnected_from_all()
        self.transport = self._reopen()
        self.peer = Peer.of(
            self.transport.name, self.peer.epoch, self.transport.metadata, self._memory, self._layout
        )
        for handoff in list(self._live.values()):
            # Between processes of one host, writes go through memory that no connection has to be open for.
            local = self.transport.is_local(handoff.sender)
            self._fire(handoff, ReceiveEvent.ABORT if local else ReceiveEvent.CUT_OFF, now, reason)

    def _connect(self, peer: Peer) -> None:
        self.transport.connect(peer)
        self._peers.connected(peer)

    def _fire(self, handoff: _Handoff, event: ReceiveEvent, now: float, reason: str = "") -> None:
        actions = handoff.machine.on(event, now)
        if actions is None:
            self.unexpected[event.name.lower()] += 1
            return
        handoff.reason = handoff.reason or reason
        if handoff.machine.state is Receiving.DRAINING and handoff.given_up_at is None:
            handoff.given_up_at = now
        if handoff.machine.state in (Receiving.READY, Receiving.CLOSED):
            del self._live[handoff.ticket.handoff_id]
        for action in actions:
            match action:
                case ReceiveAction.SEND_CONFIRM:
                    self._send(handoff, Confirm())
                case ReceiveAction.SEND_REVOKE:
                    self._send(handoff, Revoke(self.peer, handoff.reason))
                case ReceiveAction.ACCEPT:
                    self._accept(handoff, now)
                case ReceiveAction.FAIL:
                    self._events.append(ReceiveFailed(handoff.ticket.handoff_id, handoff.reason))
                case ReceiveAction.FREE_PAGES:
                    self._events.append(Drained(handoff.ticket.handoff_id))

    def _accept(self, handoff: _Handoff, now: float) -> None:
        assert handoff.final is not None
        self._events.append(
            Ready(
                handoff.ticket.handoff_id,
                handoff.final,
                transfer_s=now - handoff.reserved_at,
                exposed_s=handoff.exposed_s,
            )
        )

    def _send(self, handoff: _Handoff, body: Body) -> None:
        ticket = handoff.ticket
        message = Message(ticket.handoff_id, self.peer.epoch, handoff.sender.epoch, ticket.secret, body)
        # A peer that is gone is reported by poll(); to one that is only slow, Revoke is repeated. The link
        # may have broken since the reservation though both live, so it is made sure of.
        with contextlib.suppress(PeerUnreachable):
            self._connect(handoff.sender)
            self.transport.send(handoff.sender, encode(message))

    # --------------------------------------------------------------------------------- events

    def _on_message(self, data: bytes, now: float) -> None:
        try:
            message = decode(data)
        except BadMessage:
            self.unexpected["damaged"] += 1
            return
        if self._peers.ignores(message.source):
            self.unexpected["fenced"] += 1
            return
        handoff = self._live.get(message.handoff_id)
        if handoff is None:
            self.unexpected[type(message.body).__name__.lower()] += 1
            return
        if message.target != self.peer.epoch or message.source != handoff.sender.epoch:
            self.unexpected["foreign"] += 1
            return
        if message.secret != handoff.ticket.secret:
            self.unexpected["forged"] += 1
            return
        match message.body:
            case Push(first, count):
                self._on_push(handoff, first, count, now)
            case Finish() as finish:
                self._on_finish(handoff, finish, now)
            case Drain(reason):
                self._fire(handoff, ReceiveEvent.DRAIN, now, f"given up by the sender: {reason}")
            case _:
                self.unexpected[type(message.body).__name__.lower()] += 1

    def _on_push(self, handoff: _Handoff, first: int, count: int, now: float) -> None:
        pages = handoff.ticket.pages
        if first + count > len(pages):
            self.unexpected["push"] += 1
            return
        self._fire(handoff, ReceiveEvent.PUSH, now)
        if handoff.machine.state is Receiving.FILLING:
            handoff.machine.progress(now)
            handoff.digests.update(
                zip(range(first, first + count), self._digest(handoff, first, count), strict=True)
            )

    def _on_finish(self, handoff: _Handoff, finish: Finish, now: float) -> None:
        if handoff.machine.state is Receiving.DRAINING:
            self.unexpected["finish"] += 1
            return
        handoff.final, handoff.exposed_s = finish.final, finish.exposed_s
        mismatch = self._mismatch(handoff, finish)
        if mismatch:
            self._fire(handoff, ReceiveEvent.MISMATCH, now, mismatch)
        else:
            self._fire(handoff, ReceiveEvent.FINISH, now)

    def _mismatch(self, handoff: _Handoff, finish: Finish) -> str:
        """Why the handoff must not be decoded from; empty if every check passes."""
        ticket, final = handoff.ticket, finish.final
        if len(finish.digests) != len(ticket.pages):
            return f"{len(finish.digests)} pages were sent, {len(ticket.pages)} reserved"
        if final.position != ticket.num_tokens:
            return f"KV ends at token {final.position}, not {ticket.num_tokens}"
        if final.request_digest != handoff.request_digest:
            return "the sender computed another request (tokens or sampling parameters differ)"
        for index, expected in enumerate(finish.digests):
            if handoff.digests.get(index) == expected:
                continue
            # Never digested, or too early: look again at what is there now.
            if self._digest(handoff, index, 1)[0] != expected:
                token = ticket.first_token + index * self._layout.page_size
                return f"the page of token {token} is not what was sent: its digest differs"
        return ""

    def _digest(self, handoff: _Handoff, first: int, count: int) -> list[int]:
        ticket = handoff.ticket
        page_size = self._layout.page_size
        begin = ticket.first_token + (first + count - 1) * page_size
        tail_tokens = min(page_size, ticket.num_tokens - begin)
        return self._digester.digest(ticket.pages[first : first + count], tail_tokens)
