"""Reports the ends of jobs to their routers, and counts them."""

from __future__ import annotations

import logging

from engine.errors import EngineError, MediaMissing, UnservableRequest
from rpc.baton.v1 import worker_pb2
from worker.session.jobs import Job, Jobs
from worker.session.metrics import RequestOutcome, WorkerMetrics
from worker.session.outbox import Outbox

log = logging.getLogger(__name__)


class Answers:
    """The jobs of a worker and the events about them. Belongs to the engine thread."""

    def __init__(self, outbox: Outbox, metrics: WorkerMetrics) -> None:
        self.jobs = Jobs()
        self.outbox = outbox
        self.metrics = metrics

    def end(self, job: Job, outcome: RequestOutcome) -> None:
        """Count the end of a job and remove it. Called once per job; no events follow."""
        self.jobs.take(job.id)
        self.metrics.ended(outcome)

    def fail(self, job: Job, code: worker_pb2.FailureCode, message: str) -> None:
        """Fail a job whose resources are released or being released."""
        log.info("request %s failed: %s", job.label, message)
        self.end(job, RequestOutcome.FAILED)
        self.outbox.failed(job.session, job.id, code, message)

    def refuse(self, job: Job, code: worker_pb2.FailureCode, message: str) -> None:
        """Fail a job that was not accepted."""
        log.info("request %s refused: %s", job.label, message)
        self.metrics.ended(RequestOutcome.REFUSED)
        self.outbox.failed(job.session, job.id, code, message)


def code_of(error: EngineError) -> worker_pb2.FailureCode:
    if isinstance(error, MediaMissing):
        return worker_pb2.FAILURE_CODE_MEDIA
    own = isinstance(error, UnservableRequest)
    return worker_pb2.FAILURE_CODE_INVALID if own else worker_pb2.FAILURE_CODE_INTERNAL
