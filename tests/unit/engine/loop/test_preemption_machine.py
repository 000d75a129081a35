"""The engine's machine where requests that have waited for long preempt several others at once."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from engine.config import Forecast, Policy
from tests.unit.engine.loop.test_engine_machine import EngineMachine

SLOTS = 4


class PreemptionMachine(EngineMachine):
    """Without overlap, a request that is preempted may be admitted again at once."""

    @initialize(
        page=st.sampled_from([1, 2, 4]),
        blocks=st.integers(20, 26),
        aging=st.sampled_from([60, 80]),
        states=st.sampled_from([0, 9]),
        data=st.data(),
    )
    def start(self, page: int, blocks: int, aging: int, states: int, data: st.DataObject) -> None:  # type: ignore[override]
        self.tokens = 4 * blocks
        self.open(
            page_size=page,
            num_pages=self.tokens // page,
            chunk_budget=80,
            overlap=False,
            max_running_requests=SLOTS,
            num_state_slots=states,
            policy=Policy.PRIORITY,
            priority_preemption_threshold=0,
            tenant_quantum=10_000,
            aging_tokens=aging,
            forecast=Forecast.NONE,
        )
        self.prepare(data)

    @rule(
        firsts=st.lists(st.integers(8, 22), min_size=SLOTS, max_size=SLOTS),
        seconds=st.lists(st.integers(1, 13), min_size=SLOTS - 2, max_size=SLOTS - 2),
        old=st.integers(35, 50),
        large=st.integers(20, 34),
        small=st.integers(1, 8),
        steps=st.integers(4, 12),
    )
    def get_old(
        self, firsts: list[int], seconds: list[int], old: int, large: int, small: int, steps: int
    ) -> None:
        """A long prompt waits for slots, which others of less urgency get: it is not its tenant's turn."""
        for length in firsts:
            self.urge(length, 3, 9, "c")
        for number, length in enumerate(seconds):
            self.urge(length, 8, 9, "bc"[number % 2])
        self.urge(old, 3, 5, "a")
        self.step(1)
        self.urge(large, 8, 0, "c")
        self.urge(small, 8, 0, "b")
        self.step(steps)

    def urge(self, length: int, max_tokens: int, priority: int, tenant: str) -> None:
        prompt = [(7 * self.next_id + place) % 50 for place in range(length)]
        self.send(prompt, max_tokens, priority, tenant)


TestPreemptionMachine: Any = PreemptionMachine.TestCase
TestPreemptionMachine.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
