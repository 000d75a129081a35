"""Sending side of handoffs: writes KV pages into a receiver's pool while the next ones are computed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Final

from kv_transfer.errors import PeerUnreachable, TransferError
from kv_transfer.handoff.events import CaughtUp, HandedOff, PushSpan, SenderEvent, SendFailed
from kv_transfer.handoff.messages import (
    Body,
    Confirm,
    Digests,
    Drain,
    Finish,
    HandoffMessage,
    Push,
    Revoke,
    encode,
)
from kv_transfer.handoff.next_push import changed, next_push
from kv_transfer.handoff.port import KVPort
from kv_transfer.handoff.records import records_of
from kv_transfer.handoff.sender_states import SENDING, SendAction, SendEvent, Sending
from kv_transfer.handoff.sent_handoff import SentHandoff
from kv_transfer.handoff.state_machine import StateMachine
from kv_transfer.ticket import HandoffState, Peer, Ticket
from kv_transfer.ticket_pages import digest_blocks

_MAX_REFUSED: Final = 65_536
_AWAIT_IDLE: Final = {Sending.FLUSHING, Sending.DRAINING, Sending.ABANDONED}


class KVSender:
    """Drives `sender_states.SENDING`. A KVEndpoint polls the transport and calls the `on_` methods.

    From the first `computed` until HandedOff or SendFailed the pages of a handoff are read: they must not be
    moved, changed or freed. Failures of peers or of the network are events, never exceptions.
    """

    def __init__(self, port: KVPort, *, drain_timeout_s: float = 5.0) -> None:
        """`drain_timeout_s`: how long the pages of a failed handoff are kept for writes still in flight."""
        self._port = port
        self._layout = port.layout
        self._unexpected = port.unexpected
        self._state_timeouts = {Sending.DRAINING: drain_timeout_s, Sending.ABANDONED: math.inf}
        self._live: dict[int, SentHandoff] = {}
        self._writes: dict[int, SentHandoff] = {}
        self._refused: dict[int, None] = {}
        self._events: list[SenderEvent] = []

    @property
    def num_live(self) -> int:
        """Unfinished handoffs."""
        return len(self._live)

    def is_busy(self) -> bool:
        """Whether events are likely soon."""
        return any(handoff.machine.state is not Sending.ABANDONED for handoff in self._live.values())

    # ------------------------------------------------------------------------------ commands

    def open(
        self,
        handoff_id: int,
        now: float,
        timeout_s: float,
        *,
        keeps_decoding: bool = False,
        request_digest: int | None = None,
    ) -> None:
        """Begin a handoff. It fails after `timeout_s` without progress.

        `keeps_decoding`: the request decodes until it is paused, so CaughtUp is reported. `request_digest`:
        as in `HandoffState`; with it, the receiver gets digests chunk by chunk, not only all at the end.
        """
        if handoff_id in self._refused or handoff_id in self._live:
            self._events.append(SendFailed(handoff_id, "the handoff was refused before it began"))
            return
        machine = StateMachine(SENDING, Sending.OPEN, now, timeout_s, self._state_timeouts)
        self._live[handoff_id] = SentHandoff(handoff_id, machine, keeps_decoding, request_digest)

    def attach(self, ticket: Ticket, now: float) -> None:
        """Take the receiver's ticket: send computed pages at once, and the others as they are computed."""
        handoff = self._live.get(ticket.handoff_id)
        if ticket.sender != self._port.peer.name:
            # The ticket is for this worker's previous transport. The receiver frees the pages when it detects
            # the end of that transport; a Drain could overtake bytes that are still in flight from it.
            self._unexpected["ticket"] += 1
            if handoff is not None and handoff.ticket is None:
                self._fire(handoff, SendEvent.ABORT, now, "this worker's KV transport was reopened")
            return
        if handoff is None:
            self._unexpected["ticket"] += 1
            reason = "the sender has no such handoff, or has aborted it"
            self._refuse(ticket.receiver, ticket.handoff_id, ticket.secret, reason)
            return
        if handoff.ticket is not None:
            self._unexpected["ticket"] += 1
            return
        try:
            ticket.require(self._layout)
            self._port.peers.require_unfenced(ticket.receiver)
            handoff.require_fit(ticket, self._layout)
            self._connect(ticket.receiver)
        except TransferError as error:
            self._refuse(ticket.receiver, ticket.handoff_id, ticket.secret, str(error))
            self._fire(handoff, SendEvent.ABORT, now, str(error))
            return
        handoff.ticket, handoff.receiver, handoff.secret = ticket, ticket.receiver, ticket.secret
        handoff.pushed = ticket.first_token // self._layout.page_size
        handoff.machine.progress(now, ticket.timeout_s)
        self._fire(handoff, SendEvent.ATTACH, now)
        self._report_catching_up(handoff)

    def computed(self, handoff_id: int, pages: Sequence[int], num_tokens: int, now: float) -> None:
        """Tokens [0, num_tokens) are final in `pages`: of each block one for every group, or NO_PAGE."""
        handoff = self._extend(handoff_id, pages, num_tokens, None, now)
        if handoff is not None and handoff.machine.state is Sending.PUSHING:
            self._push(handoff, now)
            self._report_catching_up(handoff)

    def finish(
        self,
        handoff_id: int,
        pages: Sequence[int],
        num_tokens: int,
        final: HandoffState,
        now: float,
        *,
        state: Sequence[int] = (),
    ) -> None:
        """All KV of the handoff is computed, and `final.tokens` are sampled.

        `state`: pages that the recurrent state after `num_tokens` tokens takes, on one rank. Unlike others,
        they must not change from now on.
        """
        handoff = self._extend(handoff_id, pages, num_tokens, final, now)
        if handoff is None:
            return
        handoff.state = tuple(state)
        if bool(state) != (self._layout.state is not None):
            reason = f"a state of {len(state)} pages was given, not of {self._layout.state_pages}"
            self._fire(handoff, SendEvent.ABORT, now, reason)
        else:
            self._fire(handoff, SendEvent.FINISH, now)

    def abort(self, handoff_id: int, now: float) -> None:
        """Abort: SendFailed follows when the writes in flight have ended."""
        handoff = self._live.get(handoff_id)
        if handoff is not None:
            self._fire(handoff, SendEvent.ABORT, now, "aborted by the sender")

    # -------------------------------------------------------------------------------- driving

    def due(self, now: float) -> list[SenderEvent]:
        """Events since the last call, including expired deadlines. O(live handoffs)."""
        for handoff in [h for h in self._live.values() if now >= h.machine.deadline]:
            if handoff.id in self._live:
                reason = f"deadline passed while {handoff.machine.state.name.lower()}"
                self._fire(handoff, SendEvent.DEADLINE, now, reason)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """The transport is closed."""
        self._live.clear()
        self._writes.clear()

    def _fire(self, handoff: SentHandoff, event: SendEvent, now: float, reason: str = "") -> None:
        actions = handoff.machine.on(event, now)
        if actions is None:
            self._unexpected[event.name.lower()] += 1
            return
        handoff.reason = handoff.reason or reason
        if handoff.machine.state is Sending.CLOSED:
            self._forget(handoff)
        for action in actions:
            match action:
                case SendAction.PUSH:
                    self._push(handoff, now)
                case SendAction.SEND_FINISH:
                    self._send_finish(handoff, now)
                case SendAction.SEND_DRAIN:
                    self._send(handoff, Drain(handoff.reason))
                case SendAction.HAND_OFF:
                    num_bytes = sum(push.bytes for push in handoff.pushes)
                    self._events.append(HandedOff(handoff.id, num_bytes, tuple(handoff.pushes)))
                case SendAction.FAIL:
                    self._events.append(SendFailed(handoff.id, handoff.reason))
        self._settle(handoff, now)

    def _settle(self, handoff: SentHandoff, now: float) -> None:
        if not handoff.in_flight and handoff.machine.state in _AWAIT_IDLE:
            self._fire(handoff, SendEvent.IDLE, now)

    def _report_catching_up(self, handoff: SentHandoff) -> None:
        if handoff.keeps_decoding and handoff.machine.state is Sending.PUSHING and not handoff.in_flight:
            self._events.append(CaughtUp(handoff.id))

    # -------------------------------------------------------------------------------- actions

    def _push(self, handoff: SentHandoff, now: float) -> None:
        """Write all computed pages that were not sent, as one write; with the last ones, the state."""
        ticket, layout = handoff.ticket, self._layout
        assert ticket is not None
        complete = handoff.final is not None
        push = next_push(
            layout,
            ticket,
            handoff.pages,
            pushed=handoff.pushed,
            num_tokens=handoff.num_tokens,
            complete=complete,
            state=handoff.state,
        )
        if push is None:
            return
        message = self._encode(handoff, Push(push.first, push.count, push.tail_tokens), ticket.receiver)
        try:
            write = self._port.transport.write(ticket.receiver, push.copies, message)
        except PeerUnreachable as error:
            self._fire(handoff, SendEvent.WRITE_FAILED, now, str(error))
            return
        handoff.pushed = push.blocks.stop
        first_token = push.blocks.start * layout.page_size
        num_bytes = sum(copy.length for copy in push.copies)
        handoff.in_flight[write] = PushSpan(now, now, first_token, push.num_tokens, num_bytes)
        self._writes[write] = handoff
        for records in records_of(self._port.sidecars, push):
            self._send(handoff, records)
        # Computed while the write is in flight: both only read the pages.
        digests = digest_blocks(self._port.digester, layout, push.local, push.tail_tokens)
        known = dict(zip(push.present, digests, strict=True))
        handoff.digests += [known.get(index, 0) for index in range(push.count)]
        if handoff.state:
            handoff.digests += self._port.digester.digest_state(handoff.state[0])
        if handoff.request_digest is not None and not complete:
            sent = tuple(handoff.digests[push.first : push.first + push.count])
            self._send(handoff, Digests(push.first, sent, handoff.request_digest))

    def _send_finish(self, handoff: SentHandoff, now: float) -> None:
        # Sent only after every write has completed: a transport may order a message after its own write, but
        # not after other writes.
        assert handoff.final is not None
        exposed_s = max(0.0, now - handoff.computed_at)
        self._send(handoff, Finish(handoff.final, exposed_s, tuple(handoff.digests)))

    def _send(self, handoff: SentHandoff, body: Body) -> None:
        if handoff.receiver is not None:
            # poll() reports a lost peer, and a slow one runs into its deadline. Reconnect first: the link may
            # have broken since the ticket arrived, although both processes are alive.
            with contextlib.suppress(PeerUnreachable):
                self._connect(handoff.receiver)
                self._port.transport.send(handoff.receiver, self._encode(handoff, body, handoff.receiver))

    def _encode(self, handoff: SentHandoff, body: Body, receiver: Peer) -> bytes:
        return encode(HandoffMessage(handoff.id, self._port.peer.epoch, receiver.epoch, handoff.secret, body))

    def _refuse(self, receiver: Peer, handoff_id: int, secret: int, reason: str) -> None:
        """Send Drain: this handoff will never write. The id is remembered and cannot be opened later."""
        self._refused[handoff_id] = None
        if len(self._refused) > _MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        message = encode(
            HandoffMessage(handoff_id, self._port.peer.epoch, receiver.epoch, secret, Drain(reason))
        )
        with contextlib.suppress(PeerUnreachable):
            self._connect(receiver)
            self._port.transport.send(receiver, message)

    def _connect(self, peer: Peer) -> None:
        if self._port.peers.ignores(peer.epoch):
            self._port.peers.require_unfenced(peer)
        self._port.connect(peer)

    def _forget(self, handoff: SentHandoff) -> None:
        del self._live[handoff.id]
        for write in handoff.in_flight:
            del self._writes[write]
        handoff.in_flight.clear()

    # --------------------------------------------------------------------------------- events

    def on_write_done(self, write: int, now: float) -> None:
        handoff = self._writes.pop(write, None)
        if handoff is None:
            return  # its handoff was closed when the peer was lost
        span = handoff.in_flight.pop(write)
        handoff.pushes.append(PushSpan(span.begin, now, span.first_token, span.num_tokens, span.bytes))
        handoff.machine.progress(now)
        self._settle(handoff, now)
        self._report_catching_up(handoff)

    def on_write_failed(self, write: int, reason: str, now: float) -> None:
        handoff = self._writes.pop(write, None)
        if handoff is None:
            return
        del handoff.in_flight[write]
        self._fire(handoff, SendEvent.WRITE_FAILED, now, reason)

    def on_message(self, message: HandoffMessage, now: float) -> None:
        """Confirm or Revoke, addressed to this incarnation."""
        handoff = self._live.get(message.handoff_id)
        ticket = None if handoff is None else handoff.ticket
        if ticket is not None and message.source != ticket.epoch:
            self._unexpected["foreign"] += 1
            return
        if ticket is not None and message.secret != ticket.secret:
            self._unexpected["forged"] += 1
            return
        match message.body:
            case Revoke(receiver, reason) if handoff is None:
                self._refuse(receiver, message.handoff_id, message.secret, reason)
            case Revoke(receiver, reason) if handoff is not None:
                if handoff.ticket is None:
                    handoff.receiver, handoff.secret = receiver, message.secret
                with contextlib.suppress(PeerUnreachable):
                    self._connect(receiver)
                self._fire(handoff, SendEvent.REVOKE, now, f"revoked by the receiver: {reason}")
            case Confirm() if handoff is not None:
                self._fire(handoff, SendEvent.CONFIRM, now)
            case _:
                self._unexpected[type(message.body).__name__.lower()] += 1

    def on_peer_lost(self, name: str, reason: str, now: float) -> None:
        for handoff in list(self._live.values()):
            if handoff.ticket is not None and handoff.ticket.receiver.name == name:
                self._fire(handoff, SendEvent.PEER_LOST, now, f"lost {name}: {reason}")

    def on_reopened(self, reason: str, now: float) -> None:
        """The transport was closed: writes have ended, and every handoff fails.

        No Drain is sent: bytes buffered in this host's kernel may arrive after it. Each receiver detects the
        end of that transport like the end of a process, and waits for such bytes.
        """
        self._writes.clear()
        for handoff in list(self._live.values()):
            handoff.in_flight.clear()
            handoff.receiver = None
            self._fire(handoff, SendEvent.ABORT, now, reason)

    # --------------------------------------------------------------------------------- checks

    def _extend(
        self, handoff_id: int, pages: Sequence[int], num_tokens: int, final: HandoffState | None, now: float
    ) -> SentHandoff | None:
        """Record computed pages. Aborts the handoff and returns None if they contradict earlier ones. Also
        None for a handoff that has ended, which the engine may not have noticed yet."""
        handoff = self._live.get(handoff_id)
        if handoff is None or handoff.final is not None:
            return None
        known, pages = handoff.pages, tuple(pages)
        needed = self._layout.num_blocks(num_tokens) * len(self._layout.groups)
        if changed(known, pages) or num_tokens < handoff.num_tokens or len(pages) < needed:
            reason = "the request's pages changed during the handoff (was it preempted?)"
            self._fire(handoff, SendEvent.ABORT, now, reason)
            return None
        if num_tokens > handoff.num_tokens:
            handoff.machine.progress(now)
        handoff.pages, handoff.num_tokens = pages, num_tokens
        if final is not None:
            handoff.final, handoff.computed_at = final, now
        try:
            handoff.require_fit(handoff.ticket, self._layout)
        except TransferError as error:
            self._fire(handoff, SendEvent.ABORT, now, str(error))
            return None
        return handoff
