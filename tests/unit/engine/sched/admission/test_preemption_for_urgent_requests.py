"""Requests that are preempted for a more urgent one while a step is planned."""

from __future__ import annotations

from engine.config import Forecast, Policy
from engine.core.request import Request
from engine.loop.engine import Engine
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.engine.fake_runner import reference


class Submitted:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests: list[Request] = []

    def add(self, length: int, max_tokens: int, priority: int, tenant: str) -> Request:
        id = len(self.requests) + 1
        prompt = [(7 * id + i) % 50 + 3 for i in range(length)]
        request = make_request(id, prompt, max_tokens, ignore_eos=True)
        request.priority, request.tenant = priority, tenant
        self.requests.append(request)
        self.engine.submit(request)
        return request


def engine_with_priorities(**settings: object) -> Engine:
    return make_engine(
        policy=Policy.PRIORITY,
        priority_preemption_threshold=0,
        tenant_quantum=10_000,
        forecast=Forecast.NONE,
        chunk_budget=80,
        max_running_requests=4,
        **settings,
    )


def test_a_decode_is_not_admitted_again_in_the_plan_that_preempts_it() -> None:
    """An aged request preempts two others, of which the first would fit again."""
    engine = engine_with_priorities(num_pages=26, aging_tokens=85)
    sent = Submitted(engine)
    for _ in range(4):
        sent.add(3, 3, 9, "c")
    sent.add(20, 8, 8, "c")
    sent.add(20, 8, 8, "b")
    sent.add(44, 3, 3, "a")  # it waits for a slot until it has aged
    engine.step()
    victims = {sent.add(34, 8, 0, "c"), sent.add(6, 8, 0, "b")}
    preempted: set[Request] = set()
    while engine.has_work:
        output = engine.step()
        preempted.update(output.preempted)
        assert not set(output.preempted) & set(output.resumed)
    assert victims <= preempted
    for request in sent.requests:
        assert request.output == reference(request.prompt, request.sampling.max_tokens, ignore_eos=True)


def test_a_request_that_a_plan_admits_is_not_preempted_by_the_same_plan() -> None:
    """A tenant's turn comes before a more urgent request of another tenant."""
    engine = engine_with_priorities(num_pages=12, aging_tokens=4_000_000)
    sent = Submitted(engine)
    sent.add(20, 3, 0, "a")
    sent.add(40, 3, 9, "b")
    while engine.has_work:
        output = engine.step()
        assert not set(output.preempted) & set(output.started)
    for request in sent.requests:
        assert request.output == reference(request.prompt, request.sampling.max_tokens, ignore_eos=True)
