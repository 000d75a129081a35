"""Hypothesis drives an engine: every request gets the reference's tokens, and no page is lost."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.config import Batching, Forecast, Policy
from engine.core.kv_manager import Reservation
from engine.core.request import Request
from tests.unit.engine.engines import deliver, make_engine, make_request
from tests.unit.engine.fake_runner import EOS, reference

PARTIAL_PREFILLS: list[dict[str, Any]] = [
    {},
    {"max_partial_prefills": 1},
    {"max_partial_prefills": 2, "fair_partial_prefills": True},
    {"long_prefill_token_threshold": 6, "max_long_partial_prefills": 1},
]


@st.composite
def orders(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of who goes first, and who is preempted for whom."""
    policy = draw(st.sampled_from([Policy.PRIORITY, *Policy]))
    settings: dict[str, Any] = {
        "policy": policy,
        "forecast": draw(st.sampled_from(Forecast)),
        "aging_tokens": draw(st.sampled_from([1, 30, 4_000_000])),
    }
    if policy is Policy.PRIORITY:
        settings["priority_preemption_threshold"] = draw(st.sampled_from([0, 2, None]))
    if policy not in (Policy.LPM, Policy.DFS_WEIGHT):
        settings["tenant_quantum"] = draw(st.sampled_from([None, 5]))
    return settings


class EngineMachine(RuleBasedStateMachine):
    """Anything may happen to requests at any time; what they get is always the reference."""

    @initialize(
        page=st.sampled_from([1, 2, 4]),
        chunk=st.sampled_from([4, 8, 20, None]),
        pages=st.integers(10, 18),
        overlap=st.booleans(),
        radix=st.booleans(),
        batching=st.sampled_from(Batching),
        order=orders(),
        looks=st.integers(0, 3),
        slots=st.sampled_from([2, 4]),
        limits=st.sampled_from(PARTIAL_PREFILLS),
        data=st.data(),
    )
    def start(
        self,
        page: int,
        chunk: int | None,
        pages: int,
        overlap: bool,
        radix: bool,
        batching: Batching,
        order: dict[str, Any],
        looks: int,
        slots: int,
        limits: dict[str, Any],
        data: st.DataObject,
    ) -> None:
        self.engine = make_engine(
            page_size=page,
            chunk_budget=chunk,
            num_pages=pages * 4 // page,
            overlap=overlap,
            radix_cache=radix,
            batching=batching,
            max_running_requests=slots,
            **order,
            **limits,
        )
        runner: Any = self.engine.runner
        runner.looks = looks
        self.next_id = 0
        self.live: dict[int, Request] = {}
        self.reserved: list[tuple[Request, Reservation]] = []
        self.quarantined: list[Reservation] = []
        self.prepare(data)

    def prepare(self, data: st.DataObject) -> None:
        """Another machine's settings of the engine."""

    def new_request(self, prompt: list[int], max_tokens: int) -> Request:
        self.next_id += 1
        return make_request(self.next_id, prompt, max_tokens)

    prompts = st.lists(st.integers(0, 2), min_size=1, max_size=25)

    arrivals = st.lists(
        st.tuples(prompts, st.integers(1, 12), st.integers(0, 5), st.sampled_from(["", "a", "b"])),
        min_size=1,
        max_size=4,
    )

    @rule(arrivals=arrivals)
    def submit(self, arrivals: list[tuple[list[int], int, int, str]]) -> None:
        for prompt, max_tokens, priority, tenant in arrivals:
            request = self.new_request(prompt, max_tokens)
            request.priority, request.tenant = priority, tenant
            self.engine.submit(request)
            self.live[request.id] = request

    @rule(prompt=prompts, max_tokens=st.integers(2, 12))
    def reserve(self, prompt: list[int], max_tokens: int) -> None:
        if reference(prompt, 1) == [EOS]:
            return
        request = self.new_request(prompt, max_tokens)
        if (reservation := self.engine.reserve(request)) is not None:
            self.reserved.append((request, reservation))

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        request, reservation = self.reserved.pop(data.draw(st.integers(0, len(self.reserved) - 1)))
        deliver(self.engine, request, reservation)
        self.live[request.id] = request

    @precondition(lambda self: self.reserved)
    @rule(quarantine=st.booleans())
    def give_up(self, quarantine: bool) -> None:
        _, reservation = self.reserved.pop()
        if quarantine:
            self.engine.quarantine(reservation)
            self.quarantined.append(reservation)
        else:
            self.engine.free_reservation(reservation)

    @precondition(lambda self: self.quarantined)
    @rule()
    def drained(self) -> None:
        self.engine.free_reservation(self.quarantined.pop())

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        assert self.engine.abort(request.id)

    @rule()
    def proceed(self) -> None:
        self.engine.proceed()

    @rule(steps=st.integers(1, 6), block=st.booleans())
    def step(self, steps: int, block: bool = True) -> None:
        for _ in range(steps):
            output = self.engine.step(block=block)
            self.engine.check_pages()
            assert not output.failed
            for out in output.tokens:
                if out.finish is not None:
                    request = self.live.pop(out.request.id)
                    assert request.output == reference(request.prompt, request.sampling.max_tokens)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.reserved:
            self.give_up(quarantine=True)
        while self.quarantined:
            self.drained()
        for _ in range(5000):
            if not self.engine.has_work:
                break
            self.step(1)
        assert not self.live, "a request was forgotten"
        counts = self.engine.check_pages()
        assert counts.free + counts.cached == counts.total
        assert not self.engine.scheduler._in_flight


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
