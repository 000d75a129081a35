"""Where one output stands in its grammar, and which tokens may come next."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher

from engine.errors import GrammarError

Words = npt.NDArray[np.int32]
"""Bit i % 32 of word i // 32 is set where token i is allowed."""

_MOST_THREADS: Final = 8


class Matcher:
    """Belongs to one request, and to one thread. A new one replays the request's output in O(tokens)."""

    def __init__(self, inner: LLMatcher) -> None:
        """`inner` is at the beginning of the grammar, and not shared."""
        self.inner: Final = inner
        self._consumed = 0

    def advance(self, output: Sequence[int]) -> None:
        """Go on to the end of `output`, which begins with the output of the call before.

        Raises GrammarError if the grammar does not allow it.
        """
        assert self._consumed <= len(output), "an output only grows"
        tokens = list(output[self._consumed :])
        if tokens and not self.inner.consume_tokens(tokens):
            raise self.failure()
        self._consumed = len(output)

    @property
    def accepts(self) -> bool:
        """Whether the output is complete as it is: end-of-sequence tokens are allowed next."""
        return self.inner.is_accepting()

    @property
    def failed(self) -> bool:
        """Whether following the grammar exceeded a limit: it has no next token."""
        return self.inner.is_error()

    def failure(self) -> GrammarError:
        reason = self.inner.get_error().partition("\n")[0] or "no token of the vocabulary goes on with it"
        return GrammarError(f"the output cannot follow its grammar any further: {reason}")


def fill_masks(
    matchers: Sequence[Matcher], masks: Words, drafts: Sequence[Sequence[int]] | None = None
) -> list[GrammarError | None]:
    """Write the tokens that each matcher allows next into its row of `masks` [N, words].

    With `drafts`, a matcher has one row more for each drafted token: what it allows after that, and nothing
    after a token that it forbids. The matchers do not move.

    Returns for each row why it allows nothing. About 20 us a row, over several threads without the
    interpreter lock; up to 15 ms (`engine.grammar.source.LIMITS`) for a hard grammar.
    """
    if not matchers:
        return []
    assert masks.flags.c_contiguous
    drafts = drafts or [()] * len(matchers)
    target = (masks.ctypes.data, masks.shape[1] * 4, len(masks))
    owners: list[Matcher] = []
    plain: list[tuple[LLMatcher, int]] = []
    drafted: list[tuple[LLMatcher, int, list[int]]] = []
    for matcher, draft in zip(matchers, drafts, strict=True):
        row = len(owners)
        if draft:  # on a copy, since a draft may lead to where a limit is exceeded, for good
            drafted.append((matcher.inner.deep_copy(), row, list(draft)))
        else:
            plain.append((matcher.inner, row))
        owners += [matcher] * (len(draft) + 1)
    assert len(owners) == len(masks)
    masks[:] = 0
    if plain:
        _executor().unsafe_compute_mask_ptr(plain, *target)
    if drafted:
        _executor().unsafe_compute_mask_ptr_with_draft_token(drafted, *target)
    return [
        None if mask.any() and not owner.failed else owner.failure()
        for owner, mask in zip(owners, masks, strict=True)
    ]


@cache
def _executor() -> LLExecutor:
    return LLExecutor(min(_MOST_THREADS, os.cpu_count() or 1))
