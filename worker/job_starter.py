"""Starts a worker's jobs: from a router's message to the engine, or to the error that the router gets."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from engine.errors import AdapterMissing, DeadlineUnreachable, EngineError, QueueFull, UnservableRequest
from engine.grammar.matcher import Matcher
from engine.loop.engine import Engine
from rpc.baton.v1 import worker_pb2
from worker.adapters.loading import wanted_by
from worker.grammar_loading import GrammarLoading
from worker.session.answers import Answers
from worker.session.convert import request_from_proto
from worker.session.jobs import Job
from worker.session.metrics import RequestOutcome
from worker.session.router_session import RouterSession
from worker.weights import WorkerWeights

log = logging.getLogger(__name__)


class _Trouble(NamedTuple):
    """Error of a job that cannot start."""

    code: worker_pb2.FailureCode
    message: str


class JobStarter:
    def __init__(
        self,
        engine: Engine,
        answers: Answers,
        grammars: GrammarLoading,
        weights: WorkerWeights,
        load_adapter: Callable[[worker_pb2.LoadAdapterRequest], None],
        fetch_rows: Callable[[Job, worker_pb2.Work], None] | None = None,
    ) -> None:
        """`load_adapter`: begins to load an adapter, if it is not here. `fetch_rows`: see
        `WorkerImages.fetch`."""
        self._fetch_rows = fetch_rows
        self._load_adapter = load_adapter
        self._engine = engine
        self._answers = answers
        self._grammars = grammars
        self._weights = weights

    def begin(
        self,
        session: RouterSession,
        work: worker_pb2.Work,
        arrived: float,
        begin: Callable[[Job], None],
    ) -> None:
        """Make a job of `work`, and start it by `begin` once its grammar is compiled."""
        if (refusal := self._weights.refusal(work.weights)) is not None:
            code = worker_pb2.FAILURE_CODE_WEIGHTS
            self._answers.outbox.failed(session, work.request_id, code, refusal)
            return
        try:
            request = request_from_proto(work, arrived)
        except UnservableRequest as error:
            log.warning("request %s refused: %s", work.name or work.request_id, error)
            self._answers.metrics.ended(RequestOutcome.REFUSED)
            code = worker_pb2.FAILURE_CODE_INVALID
            self._answers.outbox.failed(session, work.request_id, code, str(error))
            return
        job = Job(
            request=request,
            session=session,
            arrival=arrived,
            deadline=arrived + work.timeout_s if work.timeout_s > 0 else math.inf,
            sampling=work.sampling,
            weights=self._weights.identity(),
            name=work.name,
            traceparent=work.traceparent,
        )
        self._load_adapter(wanted_by(work))
        if self._fetch_rows is not None:
            self._fetch_rows(job, work)
        grammar = job.request.sampling.grammar
        if grammar is not None:
            job.request.matcher = self._grammars.matcher(grammar)
        if job.id in self._answers.jobs:
            trouble = _Trouble(worker_pb2.FAILURE_CODE_INVALID, f"request id {job.id} is in use")
        elif grammar is not None and job.request.matcher is None:
            self._grammars.compile(grammar, partial(self._on_compiled, job, begin))
            trouble = None
        else:
            trouble = self._tried(job, begin)
        if trouble is None:
            self._answers.jobs.add(job)
        else:
            self._answers.refuse(job, *trouble)

    def _on_compiled(self, job: Job, begin: Callable[[Job], None], matcher: Future[Matcher]) -> None:
        if self._answers.jobs.get(job.id) is not job:
            return  # aborted, or timed out

        def begin_with_matcher(job: Job) -> None:
            job.request.matcher = matcher.result()
            begin(job)

        self.begin_late(job, begin_with_matcher)

    def begin_late(self, job: Job, begin: Callable[[Job], None]) -> None:
        """Start a job that the router believes to be queued."""
        trouble = self._tried(job, begin)
        if trouble is not None:
            self._engine.kv.stop_waiting(job.request)
            self._answers.fail(job, *trouble)

    def _tried(self, job: Job, begin: Callable[[Job], None]) -> _Trouble | None:
        """Start a job; returns its error, or None if it has started."""
        try:
            begin(job)
        except AdapterMissing as error:
            return _Trouble(worker_pb2.FAILURE_CODE_ADAPTER, str(error))
        except UnservableRequest as error:
            return _Trouble(worker_pb2.FAILURE_CODE_INVALID, str(error))
        except DeadlineUnreachable as error:
            return _Trouble(worker_pb2.FAILURE_CODE_DEADLINE, str(error))
        except QueueFull as error:
            return _Trouble(worker_pb2.FAILURE_CODE_OVERLOADED, str(error))
        except EngineError:
            raise  # internal error of the engine
        except Exception as error:
            log.exception("request %s", job.label)
            return _Trouble(worker_pb2.FAILURE_CODE_INTERNAL, f"{type(error).__name__}: {error}")
        return None
