"""Divides a step's token budget among prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MANY_STEPS: Final = 4
"""Skipping one step costs little for a prompt that still needs this many full steps."""


@dataclass(frozen=True, slots=True)
class Progress:
    computed: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillLimits:
    """Limits of every step of a scheduler."""

    largest: int
    """Most prefill tokens in a step without decodes."""
    unit: int = 1
    """Chunks end at multiples of this: the page size, or 1."""
    longest_chunk: int | None = None
    chunked: bool = True
    first_may_exceed: bool = False
    """With chunked prefill off: the first prompt of a step may be longer than the step's room."""
    max_partial: int | None = None
    max_long_partial: int | None = None


class StepRoom:
    """Grants tokens of one step to prompts, in the order of calls. Each call costs O(1)."""

    def __init__(self, limits: PrefillLimits, tokens: int, sharers: int = 1) -> None:
        """`sharers`: prompts that get equal shares; unused tokens go to those after them."""
        self.left = tokens
        """Tokens left; 0: nothing more is granted in this step."""
        self._limits = limits
        self._sharers = sharers
        self._is_first = True
        self._partial = self._long_partial = 0

    def grant(self, prompt: Progress) -> int:
        """Tokens of an admitted prompt to compute in this step; one that gets none stays partly computed."""
        length = self.offer(prompt)
        if length == 0 and self._waits_whole(prompt):
            self.left = 0  # otherwise prompts after it would take its room in every step
        self.left = max(0, self.left - length)
        self._is_first = self._is_first and not length
        self._sharers = max(1, self._sharers - 1)
        if length < prompt.pending:
            self._partial += 1
            self._long_partial += self._is_long(prompt)
        return length

    def offer(self, prompt: Progress) -> int:
        """What `grant` would give."""
        limits, pending = self._limits, prompt.pending
        if not limits.chunked and pending <= limits.largest:
            return pending if self._fits_whole(pending) else 0
        if not limits.chunked and limits.first_may_exceed:
            return pending if self._is_first else 0
        room = self.left
        if self._sharers > 1:
            room = min(room, max(room // self._sharers, limits.unit))
        if limits.longest_chunk is not None and limits.chunked:
            room = min(room, limits.longest_chunk)
        if pending <= room:
            return pending
        if limits.max_partial is not None and self._partial >= limits.max_partial:
            return 0
        if self.holds_back(prompt):
            return 0
        return max(0, (prompt.computed + room) // limits.unit * limits.unit - prompt.computed)

    def holds_back(self, prompt: Progress) -> bool:
        """Whether the limit of long prompts in progress holds this one back; shorter ones may pass it."""
        most = self._limits.max_long_partial
        return most is not None and self._long_partial >= most and self._is_long(prompt)

    def _fits_whole(self, pending: int) -> bool:
        if not self._limits.first_may_exceed:
            return pending <= self.left
        return pending < self.left or (self._is_first and self.left > 0)

    def _waits_whole(self, prompt: Progress) -> bool:
        return not self._limits.chunked and prompt.pending <= self._limits.largest

    def _is_long(self, prompt: Progress) -> bool:
        longest = self._limits.longest_chunk
        return longest is not None and prompt.computed + prompt.pending > longest


def without_long_chunks(prompts: Sequence[Progress], chunks: Sequence[int], room: int) -> list[int]:
    """`chunks` without parts of long prompts, if another prompt ends in this step.

    That prompt's first token is ready when the whole step is, and a long prompt would fill any step. The
    prompt that is served first keeps its chunk, so short prompts cannot starve a long one.
    """
    if all(chunk < prompt.pending for prompt, chunk in zip(prompts, chunks, strict=True)):
        return list(chunks)
    return [
        chunk if index == 0 or prompt.pending < _MANY_STEPS * room else 0
        for index, (prompt, chunk) in enumerate(zip(prompts, chunks, strict=True))
    ]
