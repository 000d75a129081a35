"""Incoming handoffs: reserve pages, receive the KV, then continue the request."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from decode_worker.reports import IncomingJob, IncomingReports
from engine.core.request import RequestId
from engine.errors import QueueFull, UnservableRequest
from engine.kv.manager.reservations import Reservation
from engine.loop.engine import Engine
from kv_transfer import Drained, Peer, Ready, ReceiveFailed, ReceiverCommands, ReceiverEvent, Reserved
from rpc.baton.v1 import worker_pb2

_NO_PAGES_NOW: Final = "no pages are free, and this handoff must not wait"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A handoff that waits for free pages."""

    job: IncomingJob
    sender: Peer
    since: float
    timeout_s: float
    """Timeout of the wait for free pages, and then of the handoff without progress."""
    room: int
    """Tokens that the sender may decode before the handoff is complete."""
    no_wait: bool
    """Fail at once if there are too few free pages."""

    @property
    def deadline(self) -> float:
        return self.since + self.timeout_s


@dataclass(frozen=True, slots=True)
class _Incoming:
    """A handoff with reserved pages, which the sender may write."""

    job: IncomingJob
    reservation: Reservation
    waited_s: float


class IncomingHandoffs:
    """Requests whose KV another worker sends. Pages are reserved in order of arrival."""

    def __init__(self, engine: Engine, reports: IncomingReports, receiver: ReceiverCommands) -> None:
        self._engine = engine
        self._reports = reports
        self._receiver = receiver
        self._waiting: deque[_Waiting] = deque()
        """In order of arrival, so that small requests do not starve a large one."""
        self._incoming: dict[RequestId, _Incoming] = {}
        self._quarantined: dict[RequestId, Reservation] = {}
        """Pages of aborted handoffs whose sender may still write; kept after the end of the job."""

    # ------------------------------------------------------------------------------ from the router

    def reserve(self, job: IncomingJob, sender: Peer, message: worker_pb2.Reserve) -> None:
        """Raises InvalidRequest or QueueFull."""
        if job.id in self._quarantined:
            raise UnservableRequest(f"request id {job.id} is in use")
        most = self._engine.config.scheduler.max_waiting_requests
        if len(self._waiting) >= most:
            self._waiting = deque(filter(self._is_wanted, self._waiting))
        if len(self._waiting) >= most:
            raise QueueFull(f"{len(self._waiting)} handoffs are waiting for pages")
        self._waiting.append(
            _Waiting(
                job=job,
                sender=sender,
                since=job.arrival,
                timeout_s=message.timeout_s,
                room=message.room_tokens,
                no_wait=message.no_wait,
            )
        )

    def drop(self, request_id: RequestId) -> bool:
        """Abort a handoff. False if no pages are reserved for the request.

        A handoff that waits for pages is skipped once its job has ended.
        """
        incoming = self._incoming.get(request_id)
        if incoming is None:
            return False
        self._quarantine(incoming)
        self._receiver.abort(request_id)
        return True

    # ------------------------------------------------------------------------------ from the loop

    def tick(self, now: float) -> None:
        """Before every step: fail handoffs that timed out, then reserve pages for waiting ones."""
        self._fail_timed_out(now)
        self._reserve_pages(now)

    def next_wakeup(self) -> float:
        """Time of the next timeout; math.inf: none."""
        return min((w.deadline for w in self._waiting if self._is_wanted(w)), default=math.inf)

    def add_load(self, load: worker_pb2.Load) -> None:
        waiting = [w for w in self._waiting if self._is_wanted(w)]
        load.incoming = len(self._incoming)
        load.queued_handoffs = len(waiting)
        needs = self._engine.kv.needs
        load.queued_pages = sum(needs.pages(needs.blocks(w.job.request.num_tokens + w.room)) for w in waiting)

    # ------------------------------------------------------------------------------ from the receiver

    def on_transfer(self, event: ReceiverEvent) -> None:
        match event:
            case Reserved(handoff_id, ticket):
                # None: aborted meanwhile; the ticket is not needed.
                if (incoming := self._incoming.get(handoff_id)) is not None:
                    self._reports.reserved(handoff_id, ticket, incoming.waited_s)
            case Ready():
                self._on_ready(event)
            case ReceiveFailed(handoff_id, reason, by_sender):
                if (incoming := self._incoming.get(handoff_id)) is not None:
                    self._quarantine(incoming)
                    self._reports.not_received(handoff_id, reason, by_sender=by_sender)
            case Drained(handoff_id, verified):
                self._engine.kv.free_reservation(self._quarantined.pop(handoff_id), verified)

    def _on_ready(self, ready: Ready) -> None:
        incoming = self._incoming.pop(ready.handoff_id, None)
        if incoming is None:
            # Aborted while the last page arrived: the sender has finished writing.
            self._engine.kv.free_reservation(self._quarantined.pop(ready.handoff_id))
            return
        request, position = incoming.job.request, ready.final.position
        request.output.extend(ready.final.tokens)
        self._engine.admit_remote(request, incoming.reservation, position)
        self._reports.arrived(request.id, position, ready.transfer_s, ready.exposed_s)

    # ------------------------------------------------------------------------------ inside

    def _is_wanted(self, waiting: _Waiting) -> bool:
        return self._reports.is_running(waiting.job.id)

    def _quarantine(self, incoming: _Incoming) -> None:
        del self._incoming[incoming.job.id]
        self._engine.kv.quarantine(incoming.reservation)
        self._quarantined[incoming.job.id] = incoming.reservation

    def _fail_timed_out(self, now: float) -> None:
        for waiting in [w for w in self._waiting if w.deadline <= now and self._is_wanted(w)]:
            reason = f"no pages became free within {now - waiting.since:.1f} s"
            self._reports.fail(waiting.job.id, worker_pb2.FAILURE_CODE_OVERLOADED, reason)

    def _reserve_pages(self, now: float) -> None:
        while self._waiting:
            first = self._waiting[0]
            if self._is_wanted(first) and not self._try_reserve(first, now):
                if not first.no_wait:
                    self._refuse_no_wait()
                    return
                self._reports.fail(first.job.id, worker_pb2.FAILURE_CODE_OVERLOADED, _NO_PAGES_NOW)
            self._waiting.popleft()

    def _refuse_no_wait(self) -> None:
        """Fail handoffs with `no_wait`: the queue is FIFO, and its head waits for pages."""
        for waiting in [w for w in self._waiting if w.no_wait and self._is_wanted(w)]:
            self._reports.fail(waiting.job.id, worker_pb2.FAILURE_CODE_OVERLOADED, _NO_PAGES_NOW)

    def _try_reserve(self, waiting: _Waiting, now: float) -> bool:
        """Reserve pages for a handoff; False if there are too few."""
        job = waiting.job
        request = job.request
        try:
            reservation = self._engine.reserve(request, waiting.room)
        except UnservableRequest as error:
            self._reports.fail(job.id, worker_pb2.FAILURE_CODE_INVALID, str(error))
            return True
        if reservation is None:
            return False
        incoming = _Incoming(job, reservation, waited_s=now - waiting.since)
        self._incoming[job.id] = incoming
        self._reports.waited(incoming.waited_s)
        self._receiver.reserve(
            job.id,
            waiting.sender,
            reservation.incoming,
            reservation.first_token,
            request.num_tokens,
            timeout_s=waiting.timeout_s,
            request_digest=job.digest(request.num_tokens),
            state=self._engine.state_pages(request),
        )
        return True
