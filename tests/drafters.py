"""A drafter that knows nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.core.draft_source import Wanted
from engine.core.request import Request, RequestId, TokenId
from engine.speculation.kinds import DrafterKind


@dataclass(frozen=True)
class Random:
    """Any tokens, as many as it is asked for or fewer."""

    vocab: int
    rng: random.Random
    kind: DrafterKind = DrafterKind.SUFFIX

    def draft(self, tokens: Sequence[TokenId], num_prompt: int, limit: int) -> list[TokenId]:
        return [self.rng.randrange(self.vocab) for _ in range(self.rng.randint(0, limit))]


@dataclass(frozen=True)
class RandomModel:
    """A draft model that guesses what `answer_of` says, now and then something else, or nothing.

    It has more tokens than any vocabulary.
    """

    answer_of: Callable[[Sequence[TokenId], int], list[TokenId]]
    """Answer to a prompt, of a number of tokens."""
    rng: random.Random
    known: set[RequestId] = field(default_factory=set)

    def draft(self, wanted: Sequence[Wanted]) -> list[list[TokenId]]:
        assert len({request.slot for request, _ in wanted}) == len(wanted)
        return [self._draft(*want) for want in wanted]

    def _draft(self, request: Request, limit: int) -> list[TokenId]:
        self.known.add(request.id)
        begin = request.num_known - len(request.prompt)
        answer = self.answer_of(request.prompt, begin + limit)[begin:]
        guesses = [token if self.rng.random() < 0.8 else self.rng.choice([0, 1 << 20]) for token in answer]
        return guesses[: self.rng.choice([0, limit, limit])]

    def ended(self, request: RequestId) -> None:
        self.known.discard(request)
