"""Reports of the sending and the receiving side, to the jobs' routers and the metrics."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.request import RequestId
from kv_transfer import Ticket
from rpc.baton.v1 import worker_pb2
from worker.session.answers import Answers
from worker.session.convert import ticket_to_proto
from worker.session.jobs import Job
from worker.session.metrics import RequestOutcome


class HandoffReports:
    """`OutgoingReports` and `IncomingReports` of a worker. Belongs to the engine thread."""

    def __init__(self, answers: Answers) -> None:
        self._jobs = answers.jobs
        self._answers = answers
        self._outbox = answers.outbox
        self._metrics = answers.metrics

    def job(self, request_id: RequestId) -> Job | None:
        return self._jobs.get(request_id)

    def is_running(self, request_id: RequestId) -> bool:
        return request_id in self._jobs

    # ------------------------------------------------------------------------------ sending

    def handed_off(
        self,
        request_id: RequestId,
        num_bytes: int,
        chunks: Sequence[worker_pb2.Span],
        pushes: Sequence[worker_pb2.Span],
    ) -> None:
        self._metrics.transfer_bytes.inc(num_bytes)
        if (job := self.job(request_id)) is not None:
            self._answers.end(job, RequestOutcome.HANDED_OFF)
            self._outbox.handed_off(job, num_bytes, chunks, pushes)

    def not_sent(self, request_id: RequestId, reason: str) -> None:
        if request_id in self._jobs:
            self._metrics.transfer_failures.inc()
            self.fail(request_id, worker_pb2.FAILURE_CODE_HANDOFF, reason)

    def not_moved(self) -> None:
        self._metrics.transfer_failures.inc()

    # ------------------------------------------------------------------------------ receiving

    def reserved(self, request_id: RequestId, ticket: Ticket, waited_s: float) -> None:
        if (job := self.job(request_id)) is not None:
            self._outbox.reserved(job, ticket_to_proto(ticket), waited_s)

    def waited(self, seconds: float) -> None:
        self._metrics.reserve_seconds.observe(seconds)

    def arrived(self, request_id: RequestId, num_tokens: int, transfer_s: float, exposed_s: float) -> None:
        if (job := self.job(request_id)) is not None:
            job.received = num_tokens
            self._metrics.transfer_seconds.observe(transfer_s)
            self._metrics.transfer_exposed_seconds.observe(exposed_s)
            self._outbox.arrived(job, transfer_s, exposed_s)

    def fail(self, request_id: RequestId, code: worker_pb2.FailureCode, message: str) -> None:
        if (job := self.job(request_id)) is not None:
            self._answers.fail(job, code, message)

    def not_received(self, request_id: RequestId, reason: str, *, by_sender: bool) -> None:
        self._metrics.transfer_failures.inc()
        code = worker_pb2.FAILURE_CODE_SENDER if by_sender else worker_pb2.FAILURE_CODE_HANDOFF
        self.fail(request_id, code, reason)

    def wanted(self, request_id: RequestId, ticket: Ticket) -> None:
        if (job := self.job(request_id)) is not None:
            self._outbox.wanted(job, ticket_to_proto(ticket))

    def pulled(
        self, request_id: RequestId, outcome: str, seconds: float, num_tokens: int = 0, num_bytes: int = 0
    ) -> None:
        self._metrics.pulled(outcome)
        self._metrics.pulled_bytes.inc(num_bytes)
        if (job := self.job(request_id)) is not None:
            job.pull_s, job.pulled = seconds, num_tokens
