"""Hypothesis drives an engine that drafts: every request gets the tokens that it gets without drafts."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from engine.config import SpeculationConfig
from engine.core.request import Request
from engine.speculation.drafters import Drafter
from engine.speculation.kinds import DraftHints
from tests.drafters import Random, RandomModel
from tests.oracle import Oracle, speculate
from tests.unit.engine.fake_runner import VOCAB, reference
from tests.unit.engine.loop.test_engine_machine import EngineMachine, answer_to

RIGHT = {"wrong": [0.0], "sometimes": [0.6], "right": [1.0], "several": [0.3, 0.9]}
"""How often each of the drafters is right."""


class SpeculationMachine(EngineMachine):
    """The machine of all engines, with drafters that are random, wrong, right, or those of a server."""

    def prepare(self, data: st.DataObject) -> None:
        self.rng = random.Random(data.draw(st.integers(0, 1000)))
        self.drafters = data.draw(st.sampled_from(["random", "configured", "model", *RIGHT]))
        config = SpeculationConfig(
            num_draft_tokens=data.draw(st.integers(1, 9)),
            adaptive=data.draw(st.booleans()),
            max_rows=data.draw(st.sampled_from([None, 3, 12])),
            earlier_tokens=40,
        )
        configured = self.drafters in ("configured", "model")
        self.model = RandomModel(reference, self.rng)
        speculate(
            self.engine,
            config,
            None if configured else self.drafters_of,
            self.model if self.drafters == "model" else None,
        )

    def new_request(self, prompt: list[int], max_tokens: int) -> Request:
        request = super().new_request(prompt, max_tokens)
        answer = reference(prompt, max_tokens)
        edited = [t if self.rng.random() < 0.9 else 0 for t in answer]
        request.hints = DraftHints(prediction=edited)
        return request

    def drafters_of(self, request: Request) -> list[Drafter]:
        answer = answer_to(request, request.sampling.max_tokens)
        oracles: list[Drafter] = [Oracle(answer, VOCAB, p, self.rng) for p in RIGHT.get(self.drafters, [])]
        return oracles or [Random(VOCAB, self.rng)]

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "engine"):
            speculator: Any = self.engine.scheduler.speculator
            assert not speculator._drafting, "the state of a request was forgotten"
            assert not self.model.known


TestSpeculationMachine = SpeculationMachine.TestCase
TestSpeculationMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
