"""How the prompts in progress share a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Progress", "share_budget", "unfilled", "whole_prompts"]

_OLDEST: Final = 4
"""One part in so many of a step is the oldest prompt's."""

_OLDEST_BESIDE_ENDS: Final = 8
"""Likewise of a step in which another prompt ends."""
_MANY_STEPS: Final = 4
"""A prompt with so many full steps to go loses little by one that it does not share."""


@dataclass(frozen=True, slots=True)
class Progress:
    computed: int
    pending: int


def share_budget(
    prompts: Sequence[Progress], budget: int, page_size: int, longest_chunk: int | None = None
) -> list[int]:
    """Tokens to compute of each prompt in this step; `prompts` are in order of arrival.

    A quarter of the budget is the oldest's, so that nobody starves; the rest goes to whoever is nearest to
    its end, which gives the first answers soonest.
    A chunk ends at a page boundary or at the end of its prompt.
    """
    chunks = [0] * len(prompts)
    if not prompts:
        return chunks
    chunks[0] = _chunk(prompts[0], max(budget // _OLDEST, page_size), page_size, longest_chunk)
    budget -= chunks[0]
    shortest_first = sorted(range(len(prompts)), key=lambda i: prompts[i].pending)
    for index in shortest_first:
        more = _chunk(prompts[index], chunks[index] + budget, page_size, longest_chunk) - chunks[index]
        chunks[index] += more
        budget -= more
    return chunks


def unfilled(prompts: Sequence[Progress], chunks: Sequence[int], budget: int, page_size: int) -> list[int]:
    """`chunks` of `share_budget`, without parts of long prompts if another prompt ends in this step.

    Its first token comes when all of the step is done, and a long prompt would fill any step. Of that, an
    eighth of the budget is still the oldest's: it is not starved by short prompts that come and go.
    """
    if all(chunk < prompt.pending for prompt, chunk in zip(prompts, chunks, strict=True)):
        return list(chunks)
    kept = [
        chunk if prompt.pending < _MANY_STEPS * budget else 0
        for prompt, chunk in zip(prompts, chunks, strict=True)
    ]
    if chunks[0] and not kept[0]:
        room = max(budget // _OLDEST_BESIDE_ENDS, page_size)
        kept[0] = _chunk(prompts[0], room, page_size, chunks[0])
    return kept


def whole_prompts(prompts: Sequence[Progress], budget: int) -> list[int]:
    """The same with chunking off: all of a prompt or nothing, and always at least one prompt."""
    chunks = [0] * len(prompts)
    for index, prompt in enumerate(prompts):
        if index and prompt.pending > budget:
            break
        chunks[index] = prompt.pending
        budget -= prompt.pending
    return chunks


def _chunk(prompt: Progress, room: int, page_size: int, longest: int | None) -> int:
    if longest is not None:
        room = min(room, longest)
    if prompt.pending <= room:
        return prompt.pending
    return max(0, (prompt.computed + room) // page_size * page_size - prompt.computed)
