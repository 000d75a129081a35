"""Drafters that no server has: wrong ones, and one that knows the answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.config import SpeculationConfig
from engine.core.request import Request, TokenId
from engine.engine import Engine
from engine.sched.speculator import DraftersOf, Speculator
from engine.speculation.drafters import Drafter
from engine.speculation.kinds import DrafterKind

__all__ = ["Oracle", "Random", "speculate"]


@dataclass(frozen=True)
class Random:
    """Any tokens, as many as it is asked for or fewer."""

    vocab: int
    rng: random.Random
    kind: Final = DrafterKind.SUFFIX

    def draft(self, tokens: Sequence[TokenId], num_prompt: int, limit: int) -> list[TokenId]:
        return [self.rng.randrange(self.vocab) for _ in range(self.rng.randint(0, limit))]


@dataclass(frozen=True)
class Oracle:
    """The answer itself, each token of it with the probability `acceptance`, else another."""

    answer: Sequence[TokenId]
    vocab: int
    acceptance: float
    rng: random.Random
    kind: Final = DrafterKind.SUFFIX

    def draft(self, tokens: Sequence[TokenId], num_prompt: int, limit: int) -> list[TokenId]:
        begin = len(tokens) - num_prompt
        known = self.answer[begin : begin + limit]
        return [t if self.rng.random() < self.acceptance else (t + 1) % self.vocab for t in known]


def speculate(
    engine: Engine,
    config: SpeculationConfig,
    drafters_of: Callable[[Request], list[Drafter]] | None = None,
) -> None:
    """Let an engine draft from now on."""
    of: DraftersOf | None = drafters_of
    engine.scheduler.speculator = Speculator(config, context=engine.max_tokens, drafters_of=of)
