"""What a worker does with requests, apart from computing them.

`Role` runs each request to its end on this worker: all of a mixed-mode worker. Prefill and decode workers
extend it with their halves of the handoff, and change nothing else. Everything here runs on the engine
thread, between steps or from within one (the engine's hooks).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from engine.core.events import StepOutput, TokenOut
from engine.core.request import Request, RequestId
from engine.core.sampling_params import FinishReason
from engine.engine import Engine
from engine.errors import EngineError, InvalidRequest, QueueFull
from rpc.baton.v1 import worker_pb2
from worker.convert import (
    FINISH_REASONS,
    load_to_proto,
    logprobs_to_proto,
    request_from_proto,
    stats_to_proto,
)
from worker.jobs import Job, Jobs
from worker.metrics import Outcome, WorkerMetrics
from worker.outbox import Outbox
from worker.session import RouterSession

__all__ = ["CommandRefused", "Role"]

log = logging.getLogger(__name__)


class CommandRefused(Exception):
    """The router's command cannot be carried out; its request fails with `code`."""

    def __init__(self, code: worker_pb2.FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Role:
    """Also the engine's hooks: see `engine.engine.Hooks`."""

    def __init__(
        self, engine: Engine, outbox: Outbox, metrics: WorkerMetrics, clock: Callable[[], float]
    ) -> None:
        self.engine = engine
        self.outbox = outbox
        self.metrics = metrics
        self.clock = clock
        self.jobs = Jobs()

    # ------------------------------------------------------------------------------ from the router

    def open(self, session: RouterSession) -> None:
        self.outbox.open(session)

    def close(self, session: RouterSession) -> None:
        """The router went away: nobody waits for its requests any more."""
        self.outbox.close(session)
        for job in self.jobs.of(session):
            self.abort(job.id)

    def handle(self, session: RouterSession, command: worker_pb2.Command) -> None:
        """Carry out one command. What is wrong with one request fails that request, never the worker."""
        self.outbox.handled(session)
        match command.WhichOneof("kind"):
            case "submit":
                self._begin(session, command.submit.work, self.submit)
            case "reserve":
                reserve = command.reserve
                self._begin(session, reserve.work, lambda job: self.reserve(job, reserve))
            case "abort":
                self.abort(command.abort.request_id)
            case "attach":
                self.attach(command.attach.ticket)
            case "fence":
                self.fence(command.fence)
            case None:
                log.warning("a command of a kind unknown here: router and worker differ in version")

    def submit(self, job: Job) -> None:
        """Raises QueueFull, InvalidRequest or CommandRefused."""
        self.engine.submit(job.request)

    def reserve(self, job: Job, message: worker_pb2.Reserve) -> None:
        raise CommandRefused(worker_pb2.FAILURE_CODE_INVALID, "this worker receives no KV")

    def attach(self, ticket: worker_pb2.Ticket) -> None:
        """A ticket for a request that is gone is nothing unusual: it ended while the ticket travelled."""
        log.debug("attach of %d: this worker sends no KV", ticket.handoff_id)

    def fence(self, message: worker_pb2.Fence) -> None:
        """A peer was declared dead. Without handoffs there are no peers."""

    def abort(self, request_id: RequestId) -> None:
        """Forget the request, wherever it is. One that has ended already is nothing unusual."""
        job = self.jobs.take(request_id)
        if job is not None:
            self.drop(job)
            self.metrics.ended(Outcome.ABORTED)

    # ------------------------------------------------------------------------------ from the loop

    def on_step(self, output: StepOutput) -> None:
        told = [(job, t) for t in output.tokens if (job := self.jobs.get(t.request.id)) is not None]
        # The router passes them on one by one, and the first token of an answer is waited for most.
        for job, token in sorted(told, key=lambda pair: pair[0].said_cached):
            self.on_tokens(job, token)
        for request, message in output.failed:
            if (job := self.jobs.get(request.id)) is not None:
                self.fail(job, worker_pb2.FAILURE_CODE_INTERNAL, message)

    def on_tokens(self, job: Job, token: TokenOut) -> None:
        self.report(job, token, token.finish)
        if token.finish is not None:
            self.jobs.take(job.id)
            self.metrics.ended(Outcome.FINISHED)

    def tick(self, now: float) -> None:
        """Whatever is due by time alone. Runs before every step, and at `next_wakeup` when idle."""
        for job in self.jobs.overdue(now):
            self.drop(job)
            self.fail(job, worker_pb2.FAILURE_CODE_DEADLINE, "the request's time is up")

    def next_wakeup(self) -> float:
        """When `tick` has something to do, on the role's clock; math.inf: not by time."""
        return self.jobs.next_deadline()

    @property
    def num_unexpected(self) -> int:
        """Late or duplicate messages of handoffs, which were ignored."""
        return 0

    @property
    def idle(self) -> bool:
        """Nothing is promised to anybody. Pages in quarantine do not count: nobody waits for them, and the
        page check knows their owner."""
        return not self.jobs

    def load(self) -> worker_pb2.Load:
        return load_to_proto(self.engine.stats())

    def stats(self) -> worker_pb2.WorkerStats:
        return stats_to_proto(self.engine.stats(), self.num_unexpected)

    # ------------------------------------------------------------------------------ the engine's hooks

    def on_started(self, requests: Sequence[Request]) -> None:
        """Told at once and not with the step's other events: a handoff's pages are found meanwhile."""
        now = self.clock()
        for request in requests:
            if (job := self.jobs.get(request.id)) is not None:
                self.metrics.queue_seconds.observe(now - job.arrival)
                self.outbox.started(job, queued_s=now - job.arrival)
        self.outbox.flush_early()

    def on_computed(self, request: Request, upto: int) -> None:
        """KV of tokens [0, upto) is in the pool."""

    def on_finished(self, request: Request) -> bool:
        """True keeps the request's pages until `engine.release`."""
        return False

    # ------------------------------------------------------------------------------ for the roles

    def drop(self, job: Job) -> None:
        """Stop working on it and free its pages, as soon as that is safe. Says nothing to anybody."""
        self.engine.abort(job.id)

    def fail(self, job: Job, code: worker_pb2.FailureCode, message: str) -> None:
        """The end of a job whose engine state is gone already."""
        self.jobs.take(job.id)
        self.metrics.ended(Outcome.FAILED)
        self.outbox.failed(job.session, job.id, code, message)

    def report(self, job: Job, token: TokenOut, finish: FinishReason | None) -> None:
        """Tell the router of a new token; `finish` is the reason that the router shall hear."""
        cached = 0 if job.said_cached else job.request.num_cached or 0
        job.said_cached = True
        self.outbox.token(
            job,
            token.token,
            logprobs=None if token.logprobs is None else logprobs_to_proto(token.logprobs),
            finish=FINISH_REASONS[finish],
            stop_token=token.token if token.is_stop else None,
            cached_tokens=cached,
        )

    def _begin(self, session: RouterSession, work: worker_pb2.Work, begin: Callable[[Job], None]) -> None:
        now = self.clock()
        job = Job(
            request=request_from_proto(work, now),
            session=session,
            arrival=now,
            deadline=now + work.timeout_s if work.timeout_s > 0 else math.inf,
            sampling=work.sampling,
        )
        try:
            self._check(job)
            begin(job)
        except CommandRefused as error:
            self._refuse(job, error.code, str(error))
        except InvalidRequest as error:
            self._refuse(job, worker_pb2.FAILURE_CODE_INVALID, str(error))
        except QueueFull as error:
            self._refuse(job, worker_pb2.FAILURE_CODE_OVERLOADED, str(error))
        except EngineError:
            raise  # the engine's own accounts are wrong
        except Exception as error:
            log.exception("request %d", job.id)
            self._refuse(job, worker_pb2.FAILURE_CODE_INTERNAL, f"{type(error).__name__}: {error}")
        else:
            self.jobs.add(job)

    def _check(self, job: Job) -> None:
        if job.id in self.jobs:
            raise CommandRefused(worker_pb2.FAILURE_CODE_INVALID, f"request id {job.id} is in use")

    def _refuse(self, job: Job, code: worker_pb2.FailureCode, message: str) -> None:
        self.metrics.ended(Outcome.REFUSED)
        self.outbox.failed(job.session, job.id, code, message)
