"""A drafter that knows the answer, and is right as often as it is told to be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.config import SpeculationConfig
from engine.core.draft_source import DraftSource
from engine.core.request import Request, TokenId
from engine.loop.engine import Engine
from engine.sched.drafts.speculator import Speculator
from engine.speculation.drafters import Drafter
from engine.speculation.kinds import DrafterKind


@dataclass(frozen=True)
class Oracle:
    """The answer itself; each token of it with the probability `acceptance`, else another."""

    answer: Sequence[TokenId]
    vocab: int
    acceptance: float
    rng: random.Random
    kind: DrafterKind = DrafterKind.SUFFIX

    def draft(self, tokens: Sequence[TokenId], num_prompt: int, limit: int) -> list[TokenId]:
        begin = len(tokens) - num_prompt
        known = self.answer[begin : begin + limit]
        return [t if self.rng.random() < self.acceptance else (t + 1) % self.vocab for t in known]


def speculate(
    engine: Engine,
    config: SpeculationConfig | None,
    drafters_of: Callable[[Request], list[Drafter]] | None = None,
    model: DraftSource | None = None,
) -> None:
    """Let an engine draft from now on, or stop it (None)."""
    built = engine.config.scheduler.speculation is not None
    engine.scheduler.speculator = (
        None
        if config is None
        else Speculator(
            config,
            context=engine.max_tokens,
            vocab_size=engine.runner.spec.vocab_size,
            max_rows=engine.config.max_decode_rows if built else None,
            step_target_s=engine.config.scheduler.itl_target_s,
            drafters_of=drafters_of,
            model=model or engine.drafts,
        )
    )
