"""Log-probabilities of tokens that are known: those of prompts.

Logits are computed for blocks of rows, and each block is reduced to what is reported before the next one is
computed: a prompt of n tokens never has [n, vocabulary] numbers in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from common.sidecars import KEPT_ALTERNATIVES
from engine.core.output import Output
from engine.core.plan import Chunk
from engine.core.sampling_params import PromptLogprobs
from engine.device.staging import send
from engine.sampling.gumbel_sample import all_finite
from engine.sampling.logprobs import LogprobTensors, measure

SCORED: Final = {"prompt_logprobs": 1}
"""Sampling parameters that ask for scores, for warm-up."""
SCORE_TENSORS: Final = 5
"""Length of `Scores.tensors`."""
_BLOCK_ROWS: Final = 128
"""Float32 logits of a block take 64 MiB for a vocabulary of 128k."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Results for Q rows, on the device."""

    finite: torch.Tensor
    """[Q] bool: False where logits were not finite."""
    logprobs: LogprobTensors

    def tensors(self) -> list[torch.Tensor]:
        return [self.finite, *self.logprobs.tensors()]


@dataclass(frozen=True, slots=True)
class Scored:
    """The chunks of a step that are scored, and what they ask for."""

    chunks: Sequence[Chunk]

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Scored:
        """O(chunks)."""
        return cls([chunk for chunk in chunks if chunk.num_scored])

    def __bool__(self) -> bool:
        return bool(self.chunks)

    @property
    def num_top(self) -> int:
        return max(_num_top(chunk) for chunk in self.chunks)

    def targets(self, device: torch.device) -> torch.Tensor:
        """[Q] int64: the tokens to score, in the order of `Batch.scored_rows`."""
        tokens = [c.request.tokens(c.scored.start + 1, c.scored.stop + 1) for c in self.chunks]
        return send([np.concatenate([np.asarray(t, dtype=np.int64) for t in tokens])], device)[0]

    def results(self, tensors: Sequence[torch.Tensor]) -> list[Output | None]:
        """Result of each chunk, from `Scores.tensors` on the host; None: its logits were not finite."""
        finite, *columns = tensors
        logprobs, found, first = LogprobTensors(*columns), list[Output | None](), 0
        for chunk in self.chunks:
            rows = slice(first, first := first + len(chunk.scored))
            num_top = _num_top(chunk)
            position = chunk.scored.start + 1
            good = bool(finite[rows].all())
            found.append(_on_host(logprobs, rows, position, num_top) if good else None)
        return found


def _on_host(tensors: LogprobTensors, rows: slice, position: int, num_top: int) -> PromptLogprobs:
    """`rows` of tensors on the host, which are of the prompt tokens from `position` on."""
    return PromptLogprobs(
        position,
        tensors.chosen[rows].tolist(),
        tensors.rank[rows].tolist(),
        num_top,
        tensors.top_ids[rows, :num_top].flatten().tolist(),
        tensors.top[rows, :num_top].flatten().tolist(),
    )


def _num_top(chunk: Chunk) -> int:
    """Alternatives that the request wants, or that pages keep."""
    return max(chunk.request.sampling.prompt_logprobs or 0, KEPT_ALTERNATIVES)


def logit_blocks(
    logits_of: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, rows: torch.Tensor
) -> Iterator[torch.Tensor]:
    """Logits [<= block, vocab] of rows [Q] of `hidden` [T, d]. All ranks iterate over the same blocks."""
    if not len(rows):
        return  # an empty tensor is split into one empty block
    for block in torch.split(rows, _BLOCK_ROWS):
        yield logits_of(hidden[block])


def score(blocks: Iterator[torch.Tensor], targets: torch.Tensor, num_top: int) -> Scores:
    """Log-probabilities of `targets` [Q], and of the `num_top` most likely tokens of each row."""
    parts = []
    for logits, tokens in zip(blocks, torch.split(targets, _BLOCK_ROWS), strict=True):
        parts.append([all_finite(logits), *measure(logits.float(), tokens, num_top).tensors()])
    finite, *columns = (torch.cat(column) for column in zip(*parts, strict=True))
    return Scores(finite, LogprobTensors(*columns))
