"""Token masks of a step's rows with grammars: computed on the host, applied by the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.core.plan import Chunk
from engine.core.request import TokenId
from engine.errors import GrammarError
from engine.grammar.matcher import Matcher, Words, fill_masks


@dataclass(frozen=True, slots=True)
class TokenMasks:
    rows: list[int]
    """[N]: indices of the constrained rows among all sampled rows."""
    words: Words
    """[N, ceil(vocab / 32)] int32: bit i % 32 of word i // 32 is set where token i is allowed."""
    errors: dict[int, GrammarError] = field(default_factory=dict)
    """Errors by row: its grammar allows no token, and the sampled token is undefined."""


def constrained_rows(chunks: Sequence[Chunk]) -> list[int]:
    """Rows of `chunks` whose requests have a grammar; all of `chunks` sample."""
    return [row for row, chunk in enumerate(chunks) if chunk.request.matcher is not None]


def masks_of(chunks: Sequence[Chunk], rows: list[int], vocab_size: int) -> TokenMasks:
    """Masks of the tokens that the grammars of `rows` allow after the output so far, which the host must
    have, and after the drafts of those that have any. A row after a draft that its grammar forbids has
    an error, and is never reached.

    A row whose request has ended meanwhile allows everything. About 20 us per row, over several threads.
    """
    words = np.full((len(rows), -(-vocab_size // 32)), -1, dtype=np.int32)
    errors: dict[int, GrammarError] = {}
    matchers: list[Matcher] = []
    drafts: list[tuple[TokenId, ...]] = []
    places: list[int] = []
    """Places of all rows of these matchers."""
    for place, row in enumerate(rows):
        chunk = chunks[row]
        if chunk.draft:
            if places and places[-1] == place - 1:  # the rows before it were not left out
                places.append(place)
                drafts[-1] = chunk.draft
            continue
        request = chunk.request
        assert request.matcher is not None
        if request.finish is not None:
            continue
        try:
            request.matcher.advance(request.output[: chunk.output_index])
        except GrammarError as error:
            errors[row] = error
        else:
            matchers.append(request.matcher)
            drafts.append(())
            places.append(place)
    filled = np.empty((len(places), words.shape[1]), dtype=np.int32)
    for place, allowed, failure in zip(places, filled, fill_masks(matchers, filled, drafts), strict=True):
        if failure is None:
            words[place] = allowed
        else:
            errors[rows[place]] = failure
    return TokenMasks(rows, words, errors)
