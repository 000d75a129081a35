"""The transfer thread of a worker: commands arrive by queue, events leave by callback."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from kv_transfer.errors import TransferError
from kv_transfer.handoff.endpoint import KVEndpoint
from kv_transfer.handoff.events import Drained, EndpointEvent, ReceiveFailed, Reserved
from kv_transfer.handoff.receiver import KVReceiver
from kv_transfer.handoff.sender import KVSender
from kv_transfer.ticket import HandoffState, Peer, Ticket

_Post: TypeAlias = Callable[[Callable[[float], None]], None]
"""Queues a command, which the transfer thread calls with the current time."""

_POLL_INTERVAL_S: Final = 0.0002
"""While the endpoint is busy, and for `_LINGER_S` after."""
_LINGER_S: Final = 0.1
_IDLE_INTERVAL_S: Final = 0.02
_REST_S: Final = 2.0
"""Idle time after which the endpoint is polled at `_RESTING_INTERVAL_S`. Handoffs begin with a command, which
ends the wait; only a link check by a peer waits for the poll."""
_RESTING_INTERVAL_S: Final = 0.1


class TransferThread:
    """Runs a KVEndpoint and polls it, often while it is busy: transports make progress only when polled.

    `on_event` is called on this thread, in order, and must not block. `on_fatal` is called once if the
    endpoint itself fails, which no peer can cause; the thread then ends, and the worker should exit.
    """

    def __init__(
        self,
        endpoint: KVEndpoint,
        on_event: Callable[[EndpointEvent], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.peer: Peer = endpoint.peer
        """This worker as its peers reach it, until a Reopened event."""
        self.sender = SenderCommands(endpoint.sender, self._post)
        self.receiver = ReceiverCommands(endpoint.receiver, self._post, on_event)
        self._endpoint = endpoint
        self._on_event = on_event
        self._on_fatal = on_fatal
        self._commands: queue.SimpleQueue[Callable[[float], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kv-transfer", daemon=True)

    @property
    def num_unexpected(self) -> int:
        """Late, duplicate, foreign or damaged messages so far."""
        return self._endpoint.num_unexpected

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the endpoint and join the thread, after executing queued commands."""
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def fence(self, epoch: int, reason: str) -> None:
        """See `KVEndpoint.fence`. Does not wait."""
        self._post(lambda now: self._endpoint.fence(epoch, reason, now))

    def _post(self, command: Callable[[float], None]) -> None:
        self._commands.put(command)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._on_fatal(error)
        finally:
            self._endpoint.close()

    def _serve(self) -> None:
        busy_until = time.monotonic()
        while True:
            command = self._next(_interval_s(time.monotonic() - busy_until))
            while command is not _NOTHING:
                if command is None:
                    return
                command(time.monotonic())
                command = self._next(0.0)
            now = time.monotonic()
            for event in self._endpoint.poll(now):
                self._on_event(event)
            if self._endpoint.is_busy(now):
                busy_until = now + _LINGER_S

    def _next(self, timeout_s: float) -> Callable[[float], None] | None:
        try:
            return self._commands.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return _NOTHING


def _interval_s(idle_s: float) -> float:
    if idle_s < 0.0:
        return _POLL_INTERVAL_S
    return _IDLE_INTERVAL_S if idle_s < _REST_S else _RESTING_INTERVAL_S


def _NOTHING(now: float) -> None:  # noqa: N802 - a constant that is a command
    """No-op command: the queue is empty."""


class SenderCommands:
    """Commands of a KVSender, callable from any thread without blocking."""

    def __init__(self, sender: KVSender, post: _Post) -> None:
        self._sender = sender
        self._post = post

    def open(
        self,
        handoff_id: int,
        timeout_s: float,
        *,
        keeps_decoding: bool = False,
        request_digest: int | None = None,
    ) -> None:
        self._post(
            lambda now: self._sender.open(
                handoff_id, now, timeout_s, keeps_decoding=keeps_decoding, request_digest=request_digest
            )
        )

    def attach(self, ticket: Ticket) -> None:
        self._post(lambda now: self._sender.attach(ticket, now))

    def computed(self, handoff_id: int, pages: Sequence[int], num_tokens: int) -> None:
        held = tuple(pages)
        self._post(lambda now: self._sender.computed(handoff_id, held, num_tokens, now))

    def finish(
        self,
        handoff_id: int,
        pages: Sequence[int],
        num_tokens: int,
        final: HandoffState,
        *,
        state: Sequence[int] = (),
    ) -> None:
        held, ends = tuple(pages), tuple(state)
        self._post(lambda now: self._sender.finish(handoff_id, held, num_tokens, final, now, state=ends))

    def abort(self, handoff_id: int) -> None:
        self._post(lambda now: self._sender.abort(handoff_id, now))


class ReceiverCommands:
    """Commands of a KVReceiver, callable from any thread without blocking.

    `reserve` is answered by Reserved, or by ReceiveFailed and Drained.
    """

    def __init__(self, receiver: KVReceiver, post: _Post, on_event: Callable[[EndpointEvent], None]) -> None:
        self._receiver = receiver
        self._post = post
        self._emit = on_event

    def reserve(
        self,
        handoff_id: int,
        sender: Peer,
        pages: Sequence[int],
        first_token: int,
        num_tokens: int,
        timeout_s: float,
        *,
        request_digest: int,
        state: Sequence[int] = (),
    ) -> None:
        held, ends = tuple(pages), tuple(state)

        def command(now: float) -> None:
            try:
                ticket = self._receiver.reserve(
                    handoff_id,
                    sender,
                    held,
                    first_token,
                    num_tokens,
                    now,
                    timeout_s,
                    request_digest=request_digest,
                    state=ends,
                )
            except TransferError as error:
                self._emit(ReceiveFailed(handoff_id, str(error)))
                self._emit(Drained(handoff_id))
            else:
                self._emit(Reserved(handoff_id, ticket))

        self._post(command)

    def abort(self, handoff_id: int) -> None:
        self._post(lambda now: self._receiver.abort(handoff_id, now))
