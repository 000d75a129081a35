"""The decode worker's half of a handoff: lend pages, wait for the KV, decode from it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.core.kv_manager import Reservation
from engine.engine import Engine
from engine.errors import InvalidRequest
from kv_transfer import Drained, Peer, Ready, ReceiveFailed, ReceiverEvent, ReceiverThread, Reserved
from rpc.baton.v1 import worker_pb2
from worker.convert import peer_from_proto, ticket_to_proto
from worker.handoff import digest_of
from worker.jobs import Job
from worker.metrics import WorkerMetrics
from worker.outbox import Outbox
from worker.role import CommandRefused, Role

__all__ = ["DecodeRole"]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A handoff for which there were no free pages yet."""

    job: Job
    sender: Peer
    since: float
    timeout_s: float
    """For the pages to become free; then again, for every piece of the KV."""

    @property
    def deadline(self) -> float:
        return self.since + self.timeout_s


@dataclass(frozen=True, slots=True)
class _Incoming:
    """A handoff that has pages, which the sender may write."""

    job: Job
    reservation: Reservation
    waited_s: float


class DecodeRole(Role):
    """Requests arrive with their KV. One that is submitted instead is prefilled here, as in mixed mode."""

    def __init__(
        self,
        engine: Engine,
        outbox: Outbox,
        metrics: WorkerMetrics,
        clock: Callable[[], float],
        receiver: ReceiverThread,
    ) -> None:
        super().__init__(engine, outbox, metrics, clock)
        self._receiver = receiver
        self._waiting: deque[_Waiting] = deque()
        """First come, first served: a large request is not passed by small ones for ever."""
        self._incoming: dict[int, _Incoming] = {}
        self._quarantined: dict[int, Reservation] = {}
        """Given up, but the sender may still write: longer than the job."""

    # ------------------------------------------------------------------------------ from the router

    def reserve(self, job: Job, message: worker_pb2.Reserve) -> None:
        if job.id in self._quarantined:
            raise CommandRefused(worker_pb2.FAILURE_CODE_INVALID, f"request id {job.id} is in use")
        if len(self._waiting) >= self.engine.config.max_waiting_requests:
            raise CommandRefused(
                worker_pb2.FAILURE_CODE_OVERLOADED, f"{len(self._waiting)} handoffs wait for pages already"
            )
        self._waiting.append(
            _Waiting(
                job=job,
                sender=peer_from_proto(message.sender),
                since=job.arrival,
                timeout_s=message.timeout_s,
            )
        )

    def fence(self, message: worker_pb2.Fence) -> None:
        self._receiver.fence(message.epoch, message.reason)

    # ------------------------------------------------------------------------------ from the loop

    def tick(self, now: float) -> None:
        super().tick(now)
        self._give_up_late(now)
        self._lend_pages(now)

    def next_wakeup(self) -> float:
        waiting = (w.deadline for w in self._waiting if w.job.id in self.jobs)
        return min(super().next_wakeup(), min(waiting, default=math.inf))

    def load(self) -> worker_pb2.Load:
        load = super().load()
        waiting = [w.job.request for w in self._waiting if w.job.id in self.jobs]
        load.incoming = len(self._incoming)
        load.queued_handoffs = len(waiting)
        load.queued_pages = sum(-(-request.num_tokens // self.engine.config.page_size) for request in waiting)
        return load

    @property
    def num_unexpected(self) -> int:
        return self._receiver.num_unexpected

    # ------------------------------------------------------------------------------ from the receiver

    def on_transfer(self, event: ReceiverEvent) -> None:
        match event:
            case Reserved(handoff_id, ticket):
                # A handoff that was given up meanwhile is being drained; nobody needs its ticket.
                if (incoming := self._incoming.get(handoff_id)) is not None:
                    self.outbox.reserved(incoming.job, ticket_to_proto(ticket), incoming.waited_s)
            case Ready():
                self._on_ready(event)
            case ReceiveFailed(handoff_id, reason):
                if (incoming := self._incoming.get(handoff_id)) is not None:
                    self._quarantine(incoming)
                    self.metrics.transfer_failures.inc()
                    self.fail(incoming.job, worker_pb2.FAILURE_CODE_HANDOFF, reason)
            case Drained(handoff_id):
                self.engine.free_reservation(self._quarantined.pop(handoff_id))

    def _on_ready(self, ready: Ready) -> None:
        incoming = self._incoming.pop(ready.handoff_id, None)
        if incoming is None:
            # Aborted while the last page came in. The sender is done, so there is nothing to drain.
            self.engine.free_reservation(self._quarantined.pop(ready.handoff_id))
            return
        request = incoming.job.request
        request.output.append(ready.final.first_token)
        self.engine.admit_remote(request, incoming.reservation)
        self.metrics.transfer_seconds.observe(ready.transfer_s)
        self.metrics.transfer_exposed_seconds.observe(ready.exposed_s)
        self.outbox.arrived(incoming.job, ready.transfer_s, ready.exposed_s)

    # ------------------------------------------------------------------------------ inside

    def drop(self, job: Job) -> None:
        if (incoming := self._incoming.get(job.id)) is not None:
            self._quarantine(incoming)
            self._receiver.abort(job.id)
        else:
            # In the engine, or in `_waiting`, where a job that is gone is skipped when its turn comes.
            self.engine.abort(job.id)

    def _quarantine(self, incoming: _Incoming) -> None:
        del self._incoming[incoming.job.id]
        self.engine.quarantine(incoming.reservation)
        self._quarantined[incoming.job.id] = incoming.reservation

    def _give_up_late(self, now: float) -> None:
        for waiting in [w for w in self._waiting if w.deadline <= now and w.job.id in self.jobs]:
            reason = f"no pages became free within {now - waiting.since:.1f} s"
            self.fail(waiting.job, worker_pb2.FAILURE_CODE_OVERLOADED, reason)

    def _lend_pages(self, now: float) -> None:
        while self._waiting:
            first = self._waiting[0]
            if first.job.id in self.jobs and not self._lend(first, now):
                return
            self._waiting.popleft()

    def _lend(self, waiting: _Waiting, now: float) -> bool:
        """Lend pages to the first in the queue; False while there are too few."""
        job = waiting.job
        request = job.request
        try:
            reservation = self.engine.reserve(request)
        except InvalidRequest as error:
            self.fail(job, worker_pb2.FAILURE_CODE_INVALID, str(error))
            return True
        if reservation is None:
            return False
        incoming = _Incoming(job, reservation, waited_s=now - waiting.since)
        self._incoming[job.id] = incoming
        self.metrics.reserve_seconds.observe(incoming.waited_s)
        self._receiver.reserve(
            job.id,
            waiting.sender,
            reservation.incoming,
            reservation.first_token,
            request.num_tokens,
            timeout_s=waiting.timeout_s,
            request_digest=digest_of(request, request.num_tokens, job.sampling),
        )
        return True
