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

__all__ = ["Matcher", "Words", "fill_masks"]

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


def fill_masks(matchers: Sequence[Matcher], masks: Words) -> list[GrammarError | None]:
    """Write the tokens that each matcher allows next into its row of `masks` [N, words].

    Returns for each row why it has none. About 20 us a row, over several threads without the interpreter
    lock; up to 15 ms (`engine.grammar.source.LIMITS`) for a hard grammar.
    """
    if not matchers:
        return []
    assert masks.flags.c_contiguous
    assert len(matchers) == len(masks)
    rows = [(matcher.inner, row) for row, matcher in enumerate(matchers)]
    _executor().unsafe_compute_mask_ptr(rows, masks.ctypes.data, masks.shape[1] * 4, len(masks))
    return [
        None if mask.any() and not matcher.failed else matcher.failure()
        for matcher, mask in zip(matchers, masks, strict=True)
    ]


@cache
def _executor() -> LLExecutor:
    return LLExecutor(min(_MOST_THREADS, os.cpu_count() or 1))
