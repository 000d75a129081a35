"""Drafts tokens for a step's decodes: which drafter, and how many tokens, for each request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from engine.config import SpeculationConfig
from engine.core.draft_source import DraftSource, Wanted
from engine.core.plan import Chunk
from engine.core.request import Request, RequestId, TokenId
from engine.sched.drafts.draft_length import DraftLength
from engine.speculation.acceptance import Acceptance
from engine.speculation.counts import DraftCounts
from engine.speculation.drafters import Drafter, EarlierAnswers, NGram, Predicted, Suffix
from engine.speculation.kinds import DrafterKind

__all__ = ["DraftersOf", "Speculator"]

DraftersOf: TypeAlias = "Callable[[Request], list[Drafter]]"

_PRIORS: Final = {
    DrafterKind.PREDICTION: 0.9,
    DrafterKind.NGRAM: 0.6,
    DrafterKind.SUFFIX: 0.6,
    DrafterKind.MODEL: 0.7,
}
_MOST_KEYS: Final = 64
"""Tenants whose earlier answers are kept: those that were used last."""


@dataclass(slots=True)
class _Drafting:
    """One request."""

    drafters: list[tuple[Drafter, Acceptance]]
    model: Acceptance | None
    """Of the draft model; None: the request may not use it, or there is none."""
    tokens: list[TokenId]
    """Of the prompt and of the answer, as far as they are known."""
    current: tuple[DrafterKind, Acceptance] | None = None
    """Who drafted what the step in flight verifies."""


@dataclass(frozen=True, slots=True)
class _Best:
    """What a request drafts in a step."""

    drafting: _Drafting
    tokens: list[TokenId]
    """Of the best of the other drafters."""
    wanted: int = 0
    """Tokens to ask the draft model for, because more of them can be expected to be right."""
    unknown: int = 0
    """Guesses of tokens that the step in flight samples: these come first, and are not verified."""


class Speculator:
    """Used by one scheduler. `draft` costs O(decodes * places that match), new tokens O(1) each."""

    def __init__(
        self,
        config: SpeculationConfig,
        *,
        context: int,
        max_rows: int | None = None,
        edits_rows: bool = True,
        step_target_s: float | None = None,
        drafters_of: DraftersOf | None = None,
        model: DraftSource | None = None,
    ) -> None:
        """`context`: most tokens of a request. `max_rows`: most decodes and drafts of a step; None: any
        number. `edits_rows`: False: requests with penalties or a grammar draft nothing. `drafters_of`: in
        place of the configured ones. `model`: drafts for all requests that may use it.
        """
        self.config: Final = config
        self.counts = DraftCounts(accepted_at=[0] * config.num_draft_tokens)
        self._context = context
        self._max_rows = min(max_rows or math.inf, config.max_rows or math.inf)
        self._edits_rows = edits_rows
        self._drafters_of = drafters_of or self._configured
        self._model = model if DrafterKind.MODEL in config.drafters else None
        self._length = DraftLength(step_target_s) if config.adaptive else None
        self._drafting: dict[RequestId, _Drafting] = {}
        self._answers: dict[str, EarlierAnswers] = {}
        """By tenant, the one that was used last at the end: drafts of one never show answers of another."""

    def draft(self, decodes: Sequence[Chunk], room: int) -> list[list[TokenId]]:
        """Tokens that may follow those of each chunk, at most `room` together."""
        least = 0.0
        rows = int(min(len(decodes) + room, self._max_rows))
        room = rows - len(decodes)
        if self._length is not None:
            room = self._length.room(len(decodes), rows)
            least = self._length.least_probability(len(decodes))
        found: list[_Best | None] = []
        for chunk in decodes:
            best = self._draft(chunk, room, least) if room > 0 else None
            found.append(best)
            if best is not None:
                room -= max(len(best.tokens), best.wanted)
        drafts = [[] if best is None else best.tokens for best in found]
        self._ask_model(decodes, found, drafts)
        return drafts

    def verified(self, chunk: Chunk, accepted: int) -> bool:
        """The step has shown how many tokens of the chunk's draft are right.

        Returns whether the draft is from the client's prediction.
        """
        drafted = len(chunk.draft)
        self.counts.add(drafted, accepted)
        drafting = self._drafting.get(chunk.request.id)
        if drafting is None or drafting.current is None:
            return False
        kind, acceptance = drafting.current
        acceptance.record(drafted, accepted)
        return kind is DrafterKind.PREDICTION

    def observe(self, decodes: int, drafted: int, accepted: int, seconds: float) -> None:
        """A step without prompts took `seconds` since the one before it."""
        if self._length is not None:
            self._length.observe(decodes, drafted, accepted, seconds)

    def ended(self, request: Request) -> None:
        self._drafting.pop(request.id, None)
        if self._model is not None:
            self._model.ended(request.id)
        if DrafterKind.SUFFIX in self.config.drafters and request.output:
            self._answers_of(request.tenant).add(request.output)

    def _draft(self, chunk: Chunk, room: int, least: float) -> _Best | None:
        request, start = chunk.request, chunk.start
        assert chunk.output_index is not None
        limit = min(
            room,
            self.config.num_draft_tokens,
            request.sampling.max_tokens - chunk.output_index - 1,
            self._context - start - 2,
        )
        if limit <= 0 or not (self._edits_rows or _is_plain(request)):
            return None
        drafting = self._drafting.get(request.id) or self._begin(request)
        drafting.tokens += request.tokens(len(drafting.tokens), request.num_known)
        unknown = (
            start + 1 - len(drafting.tokens)
        )  # 1 while the step in flight samples the chunk's first token
        best: list[TokenId] = []
        most, drafting.current = 0.0, None
        for drafter, acceptance in drafting.drafters:
            probability = acceptance.probability
            length = min(limit, _likely(probability, least))
            acceptance.rest()
            if not length or length * probability <= most:
                continue
            found = drafter.draft(drafting.tokens, len(request.prompt), length + unknown)[unknown:]
            expected = _expected(probability, len(found))
            if expected > most:
                best, most, drafting.current = found, expected, (drafter.kind, acceptance)
        return _Best(drafting, best, self._wanted(drafting, limit, least, most), unknown)

    def _wanted(self, drafting: _Drafting, limit: int, least: float, most: float) -> int:
        """Tokens to ask the draft model for; 0 if fewer than `most` of them can be expected to be right."""
        acceptance = drafting.model
        if acceptance is None:
            return 0
        length = min(limit, _likely(acceptance.probability, least))
        better = _expected(acceptance.probability, length) > most
        acceptance.rest()
        return length if better else 0

    def _ask_model(
        self, decodes: Sequence[Chunk], found: Sequence[_Best | None], drafts: list[list[TokenId]]
    ) -> None:
        """Replace drafts by those of the model where it was found to be better, and has some."""
        asked = [(k, best) for k, best in enumerate(found) if best is not None and best.wanted]
        if self._model is None or not asked:
            return
        wanted = [Wanted(decodes[k].request, best.wanted + best.unknown) for k, best in asked]
        for (k, best), guesses in zip(asked, self._model.draft(wanted), strict=True):
            if tokens := guesses[best.unknown :]:
                assert best.drafting.model is not None
                drafts[k] = tokens
                best.drafting.current = (DrafterKind.MODEL, best.drafting.model)

    def _begin(self, request: Request) -> _Drafting:
        drafters = [(d, Acceptance(_PRIORS[d.kind])) for d in self._drafters_of(request)]
        model = None
        if self._model is not None and DrafterKind.MODEL in self._allowed(request):
            model = Acceptance(_PRIORS[DrafterKind.MODEL])
        self._drafting[request.id] = drafting = _Drafting(drafters, model, [])
        return drafting

    def _allowed(self, request: Request) -> frozenset[DrafterKind]:
        own = request.hints.drafters
        return self.config.drafters if own is None else own & self.config.drafters

    def _configured(self, request: Request) -> list[Drafter]:
        hints, allowed = request.hints, self._allowed(request)
        drafters: list[Drafter] = []
        if DrafterKind.PREDICTION in allowed and len(hints.prediction):
            drafters.append(Predicted(hints.prediction))
        if DrafterKind.NGRAM in allowed:
            drafters.append(NGram())
        if DrafterKind.SUFFIX in allowed:
            drafters.append(Suffix(self._answers_of(request.tenant)))
        return drafters

    def _answers_of(self, tenant: str) -> EarlierAnswers:
        answers = self._answers.pop(tenant, None) or EarlierAnswers(self.config.earlier_tokens)
        self._answers[tenant] = answers
        if len(self._answers) > _MOST_KEYS:
            del self._answers[next(iter(self._answers))]
        return answers


def _is_plain(request: Request) -> bool:
    return request.sampling.grammar is None and not request.sampling.has_penalties


def _likely(probability: float, least: float) -> int:
    """Tokens of a draft of which each is right with at least the probability `least`."""
    if probability < least:
        return 0
    if least <= 0.0 or probability >= 1.0:
        return 1 << 30
    return int(math.log(least) / math.log(probability))


def _expected(probability: float, length: int) -> float:
    """Tokens that are accepted of a draft."""
    if probability >= 1.0:
        return float(length)
    return probability * (1 - probability**length) / (1 - probability)
