"""Receiving side of handoffs: reserves pages for a sender, and frees them when no write can land any more."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from kv_transfer.errors import PeerUnreachable
from kv_transfer.handoff.events import Drained, Ready, ReceiveFailed, ReceiverEvent
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
    encode,
)
from kv_transfer.handoff.port import KVPort
from kv_transfer.handoff.receiver_states import RECEIVING, ReceiveAction, ReceiveEvent, Receiving
from kv_transfer.handoff.records import put, received
from kv_transfer.handoff.state_machine import StateMachine
from kv_transfer.ticket import HandoffState, Peer, Ticket
from kv_transfer.ticket_pages import digest_blocks, unneeded

_URGENT_S: Final = 5.0
"""A handoff aborted longer ago does not keep the endpoint busy: its sender is slow or unreachable."""


@dataclass(slots=True, eq=False)
class _Handoff:
    machine: StateMachine[Receiving, ReceiveEvent, ReceiveAction]
    ticket: Ticket
    sender: Peer
    request_digest: int
    reserved_at: float
    digests: dict[int, int] = field(default_factory=dict)
    """Digests by page index in the ticket, computed as pages arrive; only the last one waits for Finish."""
    expected: dict[int, int] = field(default_factory=dict)
    """The sender's digests that have come before Finish."""
    records: dict[int, bytes] = field(default_factory=dict)
    """Sidecars by page index in the ticket."""
    final: HandoffState | None = None
    exposed_s: float = 0.0
    reason: str = ""
    by_sender: bool = False
    """The sender refused or aborted the handoff, or has ended."""
    given_up_at: float | None = None

    @property
    def verified(self) -> int:
        """Pages from the first on that have the sender's digests; none if the handoff as a whole has not."""
        if self.final is not None:
            return 0
        digests = self.digests
        return next((i for i in count() if i not in digests or digests[i] != self.expected.get(i)), 0)


class KVReceiver:
    """Drives `receiver_states.RECEIVING`. A KVEndpoint polls the transport and calls the `on_` methods.

    Failures of peers or of the network are events, never exceptions.
    """

    def __init__(self, port: KVPort, *, revoke_interval_s: float = 0.25) -> None:
        """`revoke_interval_s`: interval at which Revoke is repeated until the sender answers."""
        self._port = port
        self._layout = port.layout
        self._unexpected = port.unexpected
        self._state_timeouts = {Receiving.DRAINING: revoke_interval_s}
        self._live: dict[int, _Handoff] = {}
        self._events: list[ReceiverEvent] = []

    @property
    def num_live(self) -> int:
        """Number of handoffs whose pages a peer may still write."""
        return len(self._live)

    def is_busy(self, now: float) -> bool:
        """Whether events are likely soon."""
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
        state: Sequence[int] = (),
    ) -> Ticket:
        """Let `sender` write `pages`, which will hold tokens from `first_token` on, and `state`, which will
        hold the recurrent state after them.

        The receiver has `num_tokens` tokens of the request; `pages` may have room for more, which the sender
        samples before the handoff is complete.

        The handoff fails after `timeout_s` in which no page arrives, or if `request_digest` differs from the
        sender's. Raises LayoutMismatch, BadTicket or PeerUnreachable, then without a reservation; ValueError
        if the id is in use.
        """
        if handoff_id in self._live:
            raise ValueError(f"handoff {handoff_id:x} is reserved already")
        ticket = Ticket(
            handoff_id=handoff_id,
            receiver=self._port.peer,
            epoch=self._port.peer.epoch,
            layout_hash=self._layout.hash,
            pages=tuple(pages),
            first_token=first_token,
            num_tokens=num_tokens,
            timeout_s=timeout_s,
            secret=secrets.randbits(64),
            sender=sender.name,
            state=tuple(state),
        )
        ticket.require(self._layout)
        sender.require(self._layout)
        self._port.peers.require_unfenced(sender)
        self._port.connect(sender)
        machine = StateMachine(RECEIVING, Receiving.RESERVED, now, timeout_s, self._state_timeouts)
        self._live[handoff_id] = _Handoff(machine, ticket, sender, request_digest, reserved_at=now)
        return ticket

    def abort(self, handoff_id: int, now: float) -> None:
        """Abort a handoff: ReceiveFailed at once, Drained when the sender has stopped writing."""
        handoff = self._live.get(handoff_id)
        if handoff is not None:
            self._fire(handoff, ReceiveEvent.ABORT, now, "aborted by the receiver")

    def has_lent_to(self, epoch: int) -> bool:
        """Whether the peer of that epoch may write pages of this worker."""
        return any(handoff.sender.epoch == epoch for handoff in self._live.values())

    # -------------------------------------------------------------------------------- driving

    def due(self, now: float) -> list[ReceiverEvent]:
        """Events since the last call, including expired deadlines. O(live handoffs)."""
        for handoff in [h for h in self._live.values() if now >= h.machine.deadline]:
            reason = f"deadline passed while {handoff.machine.state.name.lower()}"
            self._fire(handoff, ReceiveEvent.DEADLINE, now, reason)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """The transport is closed."""
        self._live.clear()

    def _fire(self, handoff: _Handoff, event: ReceiveEvent, now: float, reason: str = "") -> None:
        actions = handoff.machine.on(event, now)
        if actions is None:
            self._unexpected[event.name.lower()] += 1
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
                    self._send(handoff, Revoke(self._port.peer, handoff.reason))
                case ReceiveAction.ACCEPT:
                    self._accept(handoff, now)
                case ReceiveAction.FAIL:
                    failed = ReceiveFailed(handoff.ticket.handoff_id, handoff.reason, handoff.by_sender)
                    self._events.append(failed)
                case ReceiveAction.FREE_PAGES:
                    put(self._port.sidecars, handoff.ticket, handoff.records, handoff.verified)
                    self._events.append(Drained(handoff.ticket.handoff_id, handoff.verified))

    def _accept(self, handoff: _Handoff, now: float) -> None:
        assert handoff.final is not None
        put(self._port.sidecars, handoff.ticket, handoff.records, len(handoff.ticket.pages))
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
        message = HandoffMessage(
            ticket.handoff_id, self._port.peer.epoch, handoff.sender.epoch, ticket.secret, body
        )
        # poll() reports a lost peer; to a slow one, Revoke is repeated. Reconnect first: the link may have
        # broken since the reservation, although both processes are alive.
        with contextlib.suppress(PeerUnreachable):
            self._port.connect(handoff.sender)
            self._port.transport.send(handoff.sender, encode(message))

    # --------------------------------------------------------------------------------- events

    def on_peer_lost(self, name: str, reason: str, now: float) -> None:
        for handoff in list(self._live.values()):
            if handoff.sender.name == name:
                handoff.by_sender = not handoff.reason
                self._fire(handoff, ReceiveEvent.PEER_LOST, now, f"lost {name}: {reason}")

    def on_reopened(self, reason: str, now: float) -> None:
        """The transport was closed: writes of peers on other hosts cannot land any more."""
        for handoff in list(self._live.values()):
            # Writes between processes of one host use shared memory, which closing connections does not stop.
            local = self._port.transport.is_local(handoff.sender)
            self._fire(handoff, ReceiveEvent.ABORT if local else ReceiveEvent.CUT_OFF, now, reason)

    def on_message(self, message: HandoffMessage, now: float) -> None:
        """Push, Digests, Finish or Drain, addressed to this incarnation."""
        handoff = self._live.get(message.handoff_id)
        if handoff is None:
            self._unexpected[type(message.body).__name__.lower()] += 1
            return
        if message.source != handoff.sender.epoch:
            self._unexpected["foreign"] += 1
            return
        if message.secret != handoff.ticket.secret:
            self._unexpected["forged"] += 1
            return
        match message.body:
            case Push() as push:
                self._on_push(handoff, push, now)
            case Digests() as digests:
                self._on_digests(handoff, digests)
            case Records() as records:
                found = received(self._port.sidecars, handoff.ticket, records)
                if found is None:
                    self._unexpected["records"] += 1
                else:
                    handoff.records.update(found)
            case Finish() as finish:
                self._on_finish(handoff, finish, now)
            case Drain(reason):
                handoff.by_sender = not handoff.reason
                self._fire(handoff, ReceiveEvent.DRAIN, now, f"aborted by the sender: {reason}")
            case _:
                self._unexpected[type(message.body).__name__.lower()] += 1

    def _on_push(self, handoff: _Handoff, push: Push, now: float) -> None:
        first, count = push.first, push.count
        if first + count > len(handoff.ticket.pages) or not 0 < push.tail_tokens <= self._layout.page_size:
            self._unexpected["push"] += 1
            return
        self._fire(handoff, ReceiveEvent.PUSH, now)
        if handoff.machine.state is Receiving.FILLING:
            handoff.machine.progress(now)
            digests = self._digest(handoff, first, count, push.tail_tokens)
            handoff.digests.update(zip(range(first, first + count), digests, strict=True))

    def _on_digests(self, handoff: _Handoff, message: Digests) -> None:
        end = message.first + len(message.digests)
        if message.request_digest != handoff.request_digest or end > len(handoff.ticket.pages):
            self._unexpected["digests"] += 1
        else:
            handoff.expected.update(zip(range(message.first, end), message.digests, strict=True))

    def _on_finish(self, handoff: _Handoff, finish: Finish, now: float) -> None:
        if handoff.machine.state is Receiving.DRAINING:
            self._unexpected["finish"] += 1
            return
        handoff.final, handoff.exposed_s = finish.final, finish.exposed_s
        mismatch = self._mismatch(handoff, finish)
        if mismatch:
            self._fire(handoff, ReceiveEvent.MISMATCH, now, mismatch)
        else:
            self._fire(handoff, ReceiveEvent.FINISH, now)

    def _mismatch(self, handoff: _Handoff, finish: Finish) -> str:
        """Why the KV must not be used; empty if every check passes."""
        ticket, final, layout = handoff.ticket, finish.final, self._layout
        if not final.fits(ticket, layout):
            known = ticket.num_tokens + len(final.tokens)
            return f"KV ends at token {final.position}; {known} are known, {len(ticket.pages)} pages reserved"
        order = ticket.order(layout)
        blocks = range(order.first_block, max(order.first_block, layout.num_blocks(final.position)))
        places = order.places(blocks)
        needed = len(places)
        heads = len(layout.state_heads)
        if len(finish.digests) != needed + heads:
            return f"{len(finish.digests)} digests came, not {needed} of pages and {heads} of the state"
        if final.request_digest != handoff.request_digest:
            return "the sender computed another request: tokens or sampling parameters differ"
        for index, (place, expected) in enumerate(zip(places, finish.digests[:needed], strict=True)):
            if handoff.digests.get(index) == expected or unneeded(layout, place, final.position):
                continue
            # Not digested yet, or before the write was complete: digest the page as it is now.
            block, group = divmod(place, len(layout.groups))
            token = block * layout.page_size
            tail_tokens = min(layout.page_size, final.position - token)
            if self._port.digester.digest([ticket.pages[index]], tail_tokens, group) != [expected]:
                return f"the digest of the page of token {token} differs from the sender's"
        state = self._port.digester.digest_state(ticket.state[0]) if heads else []
        return "" if state == list(finish.digests[needed:]) else "the digest of the state differs"

    def _digest(self, handoff: _Handoff, first: int, count: int, tail_tokens: int) -> list[int]:
        pages = handoff.ticket.pages[first : first + count]
        return digest_blocks(self._port.digester, self._layout, pages, tail_tokens)
