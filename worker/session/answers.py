"""Reports tokens and ends of jobs to their routers, and counts them."""

from __future__ import annotations

import logging

from engine.core.events import TokenOut
from engine.core.sampling_params import FinishReason
from rpc.baton.v1 import worker_pb2
from worker.session.convert import FINISH_REASONS, logprobs_to_proto
from worker.session.jobs import Job, Jobs
from worker.session.metrics import Outcome, WorkerMetrics
from worker.session.outbox import Outbox

__all__ = ["Answers"]

log = logging.getLogger(__name__)


class Answers:
    """The jobs of a worker and the events about them. Belongs to the engine thread."""

    def __init__(self, outbox: Outbox, metrics: WorkerMetrics) -> None:
        self.jobs = Jobs()
        self.outbox = outbox
        self.metrics = metrics

    def report(self, job: Job, token: TokenOut, finish: FinishReason | None) -> None:
        """Report a new token; `finish` is the finish reason to report."""
        cached = 0 if job.reported_cached else job.request.num_cached or 0
        job.reported_cached = True
        chunks, job.chunks = job.chunks, []
        verified, job.verified = job.verified, None
        self.outbox.token(
            job,
            token.token,
            logprobs=None if token.logprobs is None else logprobs_to_proto(token.logprobs),
            finish=FINISH_REASONS[finish],
            stop_token=token.token if token.is_stop else None,
            cached_tokens=cached,
            position=token.position,
            chunks=chunks,
            verified=verified,
        )

    def end(self, job: Job, outcome: Outcome) -> None:
        """Count the end of a job and remove it. Called once per job; no events follow."""
        self.jobs.take(job.id)
        self.metrics.ended(outcome)

    def fail(self, job: Job, code: worker_pb2.FailureCode, message: str) -> None:
        """Fail a job whose resources are released or being released."""
        log.info("request %s failed: %s", job.label, message)
        self.end(job, Outcome.FAILED)
        self.outbox.failed(job.session, job.id, code, message)

    def refuse(self, job: Job, code: worker_pb2.FailureCode, message: str) -> None:
        """Fail a job that was not accepted."""
        log.info("request %s refused: %s", job.label, message)
        self.metrics.ended(Outcome.REFUSED)
        self.outbox.failed(job.session, job.id, code, message)
