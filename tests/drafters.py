"""A drafter that knows nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.request import TokenId
from engine.speculation.kinds import DrafterKind

__all__ = ["Random"]


@dataclass(frozen=True)
class Random:
    """Any tokens, as many as it is asked for or fewer."""

    vocab: int
    rng: random.Random
    kind: DrafterKind = DrafterKind.SUFFIX

    def draft(self, tokens: Sequence[TokenId], num_prompt: int, limit: int) -> list[TokenId]:
        return [self.rng.randrange(self.vocab) for _ in range(self.rng.randint(0, limit))]
