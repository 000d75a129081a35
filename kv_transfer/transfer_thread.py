"""The thread that a worker's transfers run on: commands in by queue, events out by callback."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from kv_transfer.errors import TransferError
from kv_transfer.handoff.events import Drained, ReceiveFailed, ReceiverEvent, Reserved, SenderEvent
from kv_transfer.handoff.receiver import KVReceiver
from kv_transfer.handoff.sender import KVSender
from kv_transfer.ticket import Final, Peer, Ticket

__all__ = ["ReceiverThread", "SenderThread", "TransferThread"]

Event = TypeVar("Event")
Event_co = TypeVar("Event_co", covariant=True)


class Endpoint(Protocol[Event_co]):
    """What a KVSender and a KVReceiver have in common."""

    def is_busy(self, now: float) -> bool: ...

    def poll(self, now: float) -> Sequence[Event_co]: ...

    def close(self) -> None: ...


class TransferThread(Generic[Event]):
    """Runs one endpoint. It polls briskly while that is busy and for a moment after, slowly otherwise: a
    transport without a thread of its own answers nobody unless it is polled.

    `on_event` is called on this thread, in order, and must not block. `on_fatal` is called once if the
    endpoint itself breaks, which no peer can cause; the thread is over then, and the worker should be.
    """

    def __init__(
        self,
        endpoint: Endpoint[Event],
        on_event: Callable[[Event], None],
        on_fatal: Callable[[BaseException], None],
        *,
        name: str,
        poll_interval_s: float = 0.0002,
        idle_interval_s: float = 0.02,
        linger_s: float = 0.1,
    ) -> None:
        self._endpoint = endpoint
        self._on_event = on_event
        self._on_fatal = on_fatal
        self._poll_interval_s = poll_interval_s
        self._idle_interval_s = idle_interval_s
        self._linger_s = linger_s
        self._commands: queue.SimpleQueue[Callable[[float], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Closes the endpoint and joins the thread; commands given before are still carried out."""
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def post(self, command: Callable[[float], None]) -> None:
        """Has `command(now)` called on the thread, after everything posted before."""
        self._commands.put(command)

    def emit(self, event: Event) -> None:
        """For commands: reports an event, like one of the endpoint's own."""
        self._on_event(event)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._on_fatal(error)
        finally:
            self._endpoint.close()

    def _serve(self) -> None:
        busy_until = 0.0
        while True:
            busy = time.monotonic() < busy_until
            command = self._next(self._poll_interval_s if busy else self._idle_interval_s)
            while command is not _NOTHING:
                if command is None:
                    return
                command(time.monotonic())
                command = self._next(0.0)
            now = time.monotonic()
            for event in self._endpoint.poll(now):
                self._on_event(event)
            if self._endpoint.is_busy(now):
                busy_until = now + self._linger_s

    def _next(self, timeout_s: float) -> Callable[[float], None] | None:
        try:
            return self._commands.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return _NOTHING


def _NOTHING(now: float) -> None:  # noqa: N802 - a constant that is a command
    """Stands for an empty queue."""


class SenderThread:
    """A KVSender on its own thread. Same commands, none of which waits."""

    def __init__(
        self,
        sender: KVSender,
        on_event: Callable[[SenderEvent], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.peer = sender.peer
        self._sender = sender
        self._thread: TransferThread[SenderEvent] = TransferThread(
            sender, on_event, on_fatal, name="kv-sender"
        )
        self.start = self._thread.start
        self.stop = self._thread.stop

    @property
    def num_unexpected(self) -> int:
        return self._sender.unexpected.total()

    def open(self, handoff_id: int, timeout_s: float) -> None:
        self._thread.post(lambda now: self._sender.open(handoff_id, now, timeout_s))

    def attach(self, ticket: Ticket) -> None:
        self._thread.post(lambda now: self._sender.attach(ticket, now))

    def computed(self, handoff_id: int, pages: Sequence[int], num_tokens: int) -> None:
        held = tuple(pages)
        self._thread.post(lambda now: self._sender.computed(handoff_id, held, num_tokens, now))

    def finish(self, handoff_id: int, pages: Sequence[int], num_tokens: int, final: Final) -> None:
        held = tuple(pages)
        self._thread.post(lambda now: self._sender.finish(handoff_id, held, num_tokens, final, now))

    def abort(self, handoff_id: int) -> None:
        self._thread.post(lambda now: self._sender.abort(handoff_id, now))

    def fence(self, epoch: int, reason: str) -> None:
        self._thread.post(lambda now: self._sender.fence(epoch, reason, now))


class ReceiverThread:
    """A KVReceiver on its own thread. Same commands, none of which waits.

    `reserve` is answered by Reserved, or by ReceiveFailed and Drained.
    """

    def __init__(
        self,
        receiver: KVReceiver,
        on_event: Callable[[ReceiverEvent], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.peer = receiver.peer
        self._receiver = receiver
        self._thread: TransferThread[ReceiverEvent] = TransferThread(
            receiver, on_event, on_fatal, name="kv-receiver"
        )
        self.start = self._thread.start
        self.stop = self._thread.stop

    @property
    def num_unexpected(self) -> int:
        return self._receiver.unexpected.total()

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
    ) -> None:
        held = tuple(pages)

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
                )
            except TransferError as error:
                self._thread.emit(ReceiveFailed(handoff_id, str(error)))
                self._thread.emit(Drained(handoff_id))
            else:
                self._thread.emit(Reserved(handoff_id, ticket))

        self._thread.post(command)

    def abort(self, handoff_id: int) -> None:
        self._thread.post(lambda now: self._receiver.abort(handoff_id, now))

    def fence(self, epoch: int, reason: str) -> None:
        self._thread.post(lambda now: self._receiver.fence(epoch, reason, now))
