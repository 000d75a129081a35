"""A worker's load by router: whatever happens, the parts add up to the whole."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from router.placement.account.others import Others
from rpc.baton.v1 import sampling_pb2, worker_pb2
from worker.session.jobs import Job, Jobs, router_loads
from worker.session.outbox import Outbox


class Session:
    without_ray = False

    def __init__(self, router: str) -> None:
        self.router = router
        self.told: list[worker_pb2.EventBatch] = []

    def send(self, batch: worker_pb2.EventBatch) -> None:
        self.told.append(batch)


class SeveralRouters(RuleBasedStateMachine):
    """Routers connect, submit, and end; requests make progress. A router may reconnect before its old session
    is found to be over.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outbox, self.jobs = Outbox(), Jobs()
        self.sessions: list[Session] = []
        self.ids = itertools.count()

    @rule(router=st.sampled_from("abc"))
    def connect(self, router: str) -> None:
        session = Session(router)
        self.sessions.append(session)
        self.outbox.open(cast(Any, session))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), prompt=st.integers(1, 50), cached=st.integers(0, 49))
    def submit(self, data: st.DataObject, prompt: int, cached: int) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        cached = min(cached, prompt - 1)
        request = Request(
            id=next(self.ids), prompt=[1] * prompt, sampling=SamplingParams(max_tokens=9), num_cached=cached
        )
        request.num_computed = cached
        self.jobs.add(Job(request, cast(Any, session), 0.0, math.inf, sampling_pb2.SamplingParams()))

    @precondition(lambda self: len(self.jobs))
    @rule(data=st.data(), tokens=st.integers(1, 30))
    def compute(self, data: st.DataObject, tokens: int) -> None:
        request = data.draw(st.sampled_from(list(self.jobs))).request
        request.num_computed = min(request.num_computed + tokens, len(request.prompt))
        if request.num_computed == len(request.prompt):
            request.output.append(1)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """As `RequestHandler.close` does."""
        session = data.draw(st.sampled_from(self.sessions))
        self.sessions.remove(session)
        self.outbox.close(cast(Any, session))
        for job in self.jobs.of(cast(Any, session)):
            self.jobs.take(job.id)

    @invariant()
    def every_connected_router_is_named_once_and_the_parts_add_up(self) -> None:
        loads = router_loads(self.outbox.sessions, self.jobs)
        assert [load.router for load in loads] == sorted({session.router for session in self.sessions})
        assert sum(load.requests for load in loads) == len(self.jobs)
        left = sum(len(job.request.prompt) - job.request.num_computed for job in self.jobs)
        assert sum(load.queued_tokens for load in loads) == left
        for own in loads:
            others = Others.of(loads, own.router)
            assert others.requests + own.requests == len(self.jobs)
            assert others.incoming + others.decodes == others.requests


TestSeveralRouters = SeveralRouters.TestCase
