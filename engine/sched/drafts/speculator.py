"""Drafts tokens for a step's decodes: which drafter, and how many tokens, for each request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple, TypeAlias

from common.origin import Namespace
from engine.config import SpeculationConfig
from engine.core.draft_source import DraftSource, Wanted
from engine.core.plan import Chunk
from engine.core.request import Request, RequestId, TokenId
from engine.sched.drafts.draft_length import DraftLength
from engine.speculation.acceptance import Acceptance
from engine.speculation.counts import DraftCounts
from engine.speculation.drafters import Drafter, EarlierAnswers, IndexBudget, NGram, Predicted, Suffix
from engine.speculation.kinds import DrafterKind

DraftersOf: TypeAlias = "Callable[[Request], list[Drafter]]"

_PRIORS: Final = {
    DrafterKind.PREDICTION: 0.9,
    DrafterKind.NGRAM: 0.6,
    DrafterKind.SUFFIX: 0.6,
    DrafterKind.MODEL: 0.7,
}
_MOST_KEYS: Final = 64
"""Tenants (and their namespaces) of which earlier answers and acceptance are kept: those used last."""
_TRIAL: Final = 3
"""Most drafted tokens of a request in a trial."""
_INDEXED_TOKENS: Final = 4096
"""Most tokens of prompts, predictions and earlier answers that a step indexes, about 4 ms."""
_MEMORY_OF_TENANT: Final = 0.97
"""Weight of a draft relative to the next one of the tenant, in the estimate of what is accepted."""
_MEMORY_OF_ALL: Final = 0.99


@dataclass(slots=True)
class _Drafting:
    """One request."""

    drafters: list[tuple[Drafter, Acceptance]]
    model: Acceptance | None
    """Acceptance of the draft model; None: the request may not use it, or there is none."""
    tokens: list[TokenId]
    """Known tokens of prompt and answer."""
    current: tuple[DrafterKind, Acceptance] | None = None
    """Drafter of the tokens that the step in flight verifies."""


class _Best(NamedTuple):
    """What a request drafts in a step. A tuple, since hundreds are made for every step."""

    drafting: _Drafting
    tokens: list[TokenId]
    """Tokens of the best of the other drafters."""
    wanted: int = 0
    """Tokens to ask the draft model for, because more of them can be expected to be right."""
    unknown: int = 0
    """Guesses of tokens that the step in flight samples: these come first, and are not verified."""
    expected: float = 0.0
    """Tokens that will be right, of these or of the draft model's."""

    @property
    def num_rows(self) -> int:
        return max(len(self.tokens), self.wanted)


class Speculator:
    """Used by one scheduler. `draft` costs O(decodes * places that match), new tokens O(1) each, of prompts
    and predictions `_INDEXED_TOKENS` a step."""

    def __init__(
        self,
        config: SpeculationConfig,
        *,
        context: int,
        vocab_size: int,
        max_rows: int | None = None,
        max_edited_drafts: int | None = None,
        step_target_s: float | None = None,
        drafters_of: DraftersOf | None = None,
        model: DraftSource | None = None,
    ) -> None:
        """`context`: most tokens of a request. `vocab_size`: of the model that verifies. `max_rows`: most
        decodes and drafts of a step; None: any number. `max_edited_drafts`: most drafts of requests with
        penalties or a grammar. `drafters_of`: in place of the configured ones. `model`: drafts for all
        requests that may use it.
        """
        self.config: Final = config
        self.counts = DraftCounts(accepted_at=[0] * config.num_draft_tokens)
        self._context = context
        self._vocab_size = vocab_size
        self._max_rows = min(max_rows or math.inf, config.max_rows or math.inf)
        self._max_edited = math.inf if max_edited_drafts is None else max_edited_drafts
        self._drafters_of = drafters_of or self._configured
        self._only_predictions = drafters_of is None and config.drafters == {DrafterKind.PREDICTION}
        self._model = model if DrafterKind.MODEL in config.drafters else None
        self._length = DraftLength(step_target_s) if config.adaptive else None
        self._indexing = IndexBudget()
        self._drafting: dict[RequestId, _Drafting] = {}
        self._first = 0
        """The decode whose draft is found first; another one in every step, since room may be short."""
        self._of_all = {kind: Acceptance(prior, _MEMORY_OF_ALL) for kind, prior in _PRIORS.items()}
        self._of_tenants: dict[tuple[str, DrafterKind], Acceptance] = {}
        """Estimates from all requests, and from those of a tenant."""
        self._answers: dict[tuple[str, Namespace], EarlierAnswers] = {}
        """Earlier answers by tenant and namespace, least recently used first: drafts never show answers of
        another one."""

    def draft(self, decodes: Sequence[Chunk], room: int, *, alone: bool = True) -> list[list[TokenId]]:
        """Tokens that may follow those of each chunk, at most `room` together.

        Empty without any drafter. `alone`: the step has no prompts, so that its time will show what drafts
        cost.
        """
        if self._only_predictions and not any(len(chunk.request.hints.prediction) for chunk in decodes):
            return []
        self._indexing.left = _INDEXED_TOKENS
        rows = int(min(len(decodes) + room, self._max_rows))
        if self._length is None:
            found = self._find(decodes, rows - len(decodes), 0.0)
        else:
            found = self._worth_it(decodes, rows, self._length, alone=alone)
        drafts: list[list[TokenId]] = [[] for _ in decodes]
        for index, best in found.items():
            drafts[index] = best.tokens
        self._ask_model(decodes, found, drafts)
        if self._length is not None:
            self._length.costs.planned(drafts=any(drafts), asked=_rows_of(found)[1])
        return drafts

    def _worth_it(
        self, decodes: Sequence[Chunk], rows: int, length: DraftLength, *, alone: bool
    ) -> dict[int, _Best]:
        """For each decode, the drafts that are expected to raise tokens per second, or a trial of some."""
        count = len(decodes)
        room = length.room(count, rows)
        if room <= 0 or length.measures_plain(count):
            return {}
        found = self._find(decodes, room, length.least_probability(count))
        drafted, asked = _rows_of(found)
        expected = sum(best.expected for best in found.values())
        if drafted and length.pays(count, drafted, expected, asked=asked, alone=alone):
            return found
        if alone:
            found = self._find(decodes, min(length.trial(count), room), 0.0, longest=_TRIAL)
            drafted, asked = _rows_of(found)
            if length.affords(count, drafted, asked=asked):
                return found
        return {}

    def _find(
        self, decodes: Sequence[Chunk], room: int, least: float, longest: int | None = None
    ) -> dict[int, _Best]:
        """For each decode, drafts of at most `room` tokens together and `longest` each. Each token is right
        with at least the probability `least`.
        """
        most = self.config.num_draft_tokens
        longest = most if longest is None else min(longest, most)
        found: dict[int, _Best] = {}
        edited_room = self._max_edited
        self._first = (self._first + 1) % max(len(decodes), 1)
        for index in (*range(self._first, len(decodes)), *range(self._first)):
            is_plain = _is_plain(decodes[index].request)
            limit = min(room, longest) if is_plain else int(min(room, longest, edited_room))
            best = self._draft(decodes[index], limit, least) if limit > 0 else None
            if best is not None and best.num_rows:
                found[index] = best
                room -= best.num_rows
                edited_room -= 0 if is_plain else best.num_rows
        return found

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

    def interrupted(self) -> None:
        """A step with prompts ran, or the device was idle: the time of the last step is not known."""
        if self._length is not None:
            self._length.interrupted()

    def ended(self, request: Request) -> None:
        self._drafting.pop(request.id, None)
        if self._model is not None:
            self._model.ended(request.id)
        if DrafterKind.SUFFIX in self.config.drafters and request.output:
            self._answers_of(request).add(request.output)

    def _draft(self, chunk: Chunk, room: int, least: float) -> _Best | None:
        request, start, place = chunk.request, chunk.start, chunk.output_index
        assert place is not None
        if self._only_predictions and not len(request.hints.prediction):
            return None
        limit = min(room, request.sampling.max_tokens - place - 1, self._context - start - 2)
        if limit <= 0:
            return None
        drafting = self._drafting.get(request.id) or self._begin(request)
        known = drafting.tokens
        request.extend_known(known)
        unknown = start + 1 - len(known)  # 1 while the step in flight samples the chunk's first token
        best: list[TokenId] = []
        most, drafting.current = 0.0, None
        for drafter, acceptance in drafting.drafters:
            probability = acceptance.probability
            length = min(limit, _likely(probability, least))
            acceptance.rest()
            if not length or length * probability <= most:
                continue
            found = drafter.draft(known, len(request.prompt), length + unknown)[unknown:]
            expected = _expected(probability, len(found))
            if expected > most:
                best, most, drafting.current = found, expected, (drafter.kind, acceptance)
        wanted = 0
        if drafting.model is not None:
            probability = drafting.model.probability
            length = min(limit, _likely(probability, least))
            if _expected(probability, length) > most:
                wanted, most = length, _expected(probability, length)
            drafting.model.rest()
        return _Best(drafting, best, wanted, unknown, most)

    def _ask_model(
        self, decodes: Sequence[Chunk], found: dict[int, _Best], drafts: list[list[TokenId]]
    ) -> None:
        """Replace drafts by those of the model where it was found to be better, and has some."""
        asked = [(k, best) for k, best in sorted(found.items()) if best.wanted]
        if self._model is None or not asked:
            return
        wanted = [Wanted(decodes[k].request, best.wanted + best.unknown) for k, best in asked]
        for (k, best), guesses in zip(asked, self._model.draft(wanted), strict=True):
            # A draft model's embedding may be padded to more rows than the model has that verifies.
            if tokens := [*takewhile(lambda token: token < self._vocab_size, guesses[best.unknown :])]:
                assert best.drafting.model is not None
                drafts[k] = tokens
                best.drafting.current = (DrafterKind.MODEL, best.drafting.model)

    def _begin(self, request: Request) -> _Drafting:
        drafters = [(d, self._acceptance(request, d.kind)) for d in self._drafters_of(request)]
        model = None
        if self._model is not None and DrafterKind.MODEL in self._allowed(request):
            model = self._acceptance(request, DrafterKind.MODEL)
        self._drafting[request.id] = drafting = _Drafting(drafters, model, [])
        return drafting

    def _acceptance(self, request: Request, kind: DrafterKind) -> Acceptance:
        key = (request.tenant, kind)
        of_tenant = self._of_tenants.pop(key, None) or Acceptance(self._of_all[kind], _MEMORY_OF_TENANT)
        self._of_tenants[key] = of_tenant
        if len(self._of_tenants) > _MOST_KEYS * len(DrafterKind):
            del self._of_tenants[next(iter(self._of_tenants))]
        return Acceptance(of_tenant)

    def _allowed(self, request: Request) -> frozenset[DrafterKind]:
        own = request.hints.drafters
        return self.config.drafters if own is None else own & self.config.drafters

    def _configured(self, request: Request) -> list[Drafter]:
        hints, allowed = request.hints, self._allowed(request)
        drafters: list[Drafter] = []
        if DrafterKind.PREDICTION in allowed and len(hints.prediction):
            drafters.append(Predicted(hints.prediction, self._indexing))
        if DrafterKind.NGRAM in allowed:
            drafters.append(NGram(self._indexing))
        if DrafterKind.SUFFIX in allowed:
            drafters.append(Suffix(self._answers_of(request)))
        return drafters

    def _answers_of(self, request: Request) -> EarlierAnswers:
        key = request.tenant, request.namespace
        answers = self._answers.pop(key, None) or EarlierAnswers(self.config.earlier_tokens, self._indexing)
        self._answers[key] = answers
        if len(self._answers) > _MOST_KEYS:
            del self._answers[next(iter(self._answers))]
        return answers


def _rows_of(found: dict[int, _Best]) -> tuple[int, bool]:
    """Drafted tokens, and whether the draft model is asked for some of them."""
    return sum(best.num_rows for best in found.values()), any(best.wanted for best in found.values())


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
