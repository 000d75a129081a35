"""How the prompts in progress share a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Progress", "split_budget", "unfilled", "whole_prompts"]

_MANY_STEPS: Final = 4
"""A prompt with so many full steps to go loses little by one that it does not share."""


@dataclass(frozen=True, slots=True)
class Progress:
    computed: int
    pending: int


def split_budget(
    prompts: Sequence[Progress], budget: int, page_size: int, longest_chunk: int | None = None
) -> list[int]:
    """Tokens to compute of each prompt in this step; `prompts` are in the order in which they are served.

    A chunk ends at a page boundary or at the end of its prompt.
    """
    chunks = []
    for prompt in prompts:
        chunks.append(_chunk(prompt, budget, page_size, longest_chunk))
        budget -= chunks[-1]
    return chunks


def unfilled(prompts: Sequence[Progress], chunks: Sequence[int], budget: int) -> list[int]:
    """`chunks` of `split_budget`, without parts of long prompts if another prompt ends in this step.

    The first token of that prompt comes when all of the step is done, and a long prompt would fill any step.
    The prompt that is served first keeps its chunk, so no prompt is starved by short ones that come and go.
    """
    if all(chunk < prompt.pending for prompt, chunk in zip(prompts, chunks, strict=True)):
        return list(chunks)
    return [
        chunk if index == 0 or prompt.pending < _MANY_STEPS * budget else 0
        for index, (prompt, chunk) in enumerate(zip(prompts, chunks, strict=True))
    ]


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
