"""Log-probabilities of tokens that are known: those of prompts, and labels after a prompt.

Logits are computed for blocks of rows, and each block is reduced to what is reported before the next one is
computed: a prompt of n tokens never has [n, vocabulary] numbers in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from common.sidecars import KEPT_ALTERNATIVES
from engine.core.output import Output
from engine.core.plan import Chunk
from engine.core.read import LabelLogprobs, PageSums, Pooled, page_parts
from engine.core.sampling_params import PromptLogprobs
from engine.device.staging import send
from engine.sampling.gumbel_sample import all_finite
from engine.sampling.logprobs import LogprobTensors, measure, of_tokens

SCORED: Final = {"prompt_logprobs": 1}
"""Sampling parameters that ask for scores, for warm-up."""
SCORE_TENSORS: Final = 6
"""Length of `Scores.tensors`."""
_BLOCK_ROWS: Final = 128
"""Float32 logits of a block take 64 MiB for a vocabulary of 128k."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Results for Q rows, on the device."""

    finite: torch.Tensor
    """[Q] bool: False where logits were not finite."""
    labels: torch.Tensor
    """[Q, labels] float32; of the targets alone if nothing is read."""
    logprobs: LogprobTensors

    def tensors(self) -> list[torch.Tensor]:
        return [self.finite, self.labels, *self.logprobs.tensors()]


@dataclass(frozen=True, slots=True)
class Scored:
    """The chunks of a step that are scored, and what they ask for."""

    chunks: Sequence[Chunk]
    page_size: int = 0
    """Vectors are summed up page by page; 0: as a whole."""

    @classmethod
    def of(cls, chunks: Sequence[Chunk], page_size: int = 0) -> Scored:
        """O(chunks)."""
        return cls([chunk for chunk in chunks if chunk.num_scored], page_size)

    def __bool__(self) -> bool:
        return bool(self.chunks)

    @property
    def num_top(self) -> int:
        return max(_num_top(chunk) for chunk in self.chunks)

    def targets(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[Q] int64: the tokens to score, in the order of `Batch.scored_rows`; any after a row that is read.

        [Q, labels] int64: the labels of these rows, and any tokens in their place; None: nothing is read.
        """
        targets = np.concatenate([_targets(chunk) for chunk in self.chunks])
        most = max(len(_labels(chunk)) for chunk in self.chunks)
        if not most:
            return send([targets], device)[0], None
        labels, row = np.zeros((len(targets), most), dtype=np.int64), 0
        for chunk in self.chunks:
            wanted = _labels(chunk)
            labels[row, : len(wanted)] = wanted
            row += len(chunk.scored)
        on_device = send([targets, labels.reshape(-1)], device)
        return on_device[0], on_device[1].view(labels.shape)

    def split(self, tensors: list[torch.Tensor]) -> tuple[list[Output | None], list[torch.Tensor]]:
        """Result of each chunk, from the first `tensors` of a step on the host, and the others."""
        if self.pooled:
            return self._pooled(tensors[0]), tensors[1:]
        return self.results(tensors[:SCORE_TENSORS]), tensors[SCORE_TENSORS:]

    @property
    def pooled(self) -> bool:
        """Whether vectors are wanted, and no scores of tokens: an engine computes either."""
        read = self.chunks[0].request.read if self.chunks else None
        return read is not None and bool(read.pooling)

    def _pooled(self, vectors: torch.Tensor) -> list[Output | None]:
        values = vectors.numpy().astype("<f4", copy=False)
        found, first = list[Output | None](), 0
        for chunk, lengths in zip(self.chunks, self.sums(), strict=True):
            rows = values[first : first + len(lengths)]
            first += len(lengths)
            if not np.isfinite(rows).all():
                found.append(None)
            elif self.page_size:
                found.append(PageSums(chunk.start, chunk.end, self.page_size, rows))
            else:
                found.append(Pooled(len(chunk.request.prompt), rows.tobytes()))
        return found

    def sums(self) -> list[list[int]]:
        """How many rows of each chunk are added up, for each vector that is made of it."""
        if not self.page_size:
            return [[chunk.num_scored] for chunk in self.chunks]
        cut = (page_parts(chunk.start, chunk.end, self.page_size) for chunk in self.chunks)
        return [[end - start for start, end in parts] for parts in cut]

    def results(self, tensors: Sequence[torch.Tensor]) -> list[Output | None]:
        """Result of each chunk, from `Scores.tensors` on the host; None: its logits were not finite."""
        finite, labels, *columns = tensors
        logprobs, found, first = LogprobTensors(*columns), list[Output | None](), 0
        for chunk in self.chunks:
            rows = slice(first, first := first + len(chunk.scored))
            num_top = _num_top(chunk)
            position = chunk.scored.start + 1
            good = bool(finite[rows].all())
            if not good:
                found.append(None)
            elif chunk.ends_request:
                found.append(_read(chunk, labels[rows.start]))
            else:
                found.append(_on_host(logprobs, rows, position, num_top))
        return found


def _targets(chunk: Chunk) -> npt.NDArray[np.int64]:
    if chunk.ends_request:
        return np.zeros(1, dtype=np.int64)
    tokens = chunk.request.tokens(chunk.scored.start + 1, chunk.scored.stop + 1)
    return np.asarray(tokens, dtype=np.int64)


def _labels(chunk: Chunk) -> Sequence[int]:
    read = chunk.request.read
    return () if read is None else read.label_ids


def _read(chunk: Chunk, row: torch.Tensor) -> LabelLogprobs:
    """What a request reads; `row`: log-probabilities of its labels, and of others after them."""
    ids = list(_labels(chunk))
    return labelled(chunk.end, ids, row[: len(ids)].tolist())


def labelled(position: int, ids: list[int], logprobs: list[float]) -> LabelLogprobs:
    """The log-probabilities of labels, with their mass."""
    mass = math.fsum(math.exp(logprob) for logprob in dict(zip(ids, logprobs, strict=True)).values())
    return LabelLogprobs(position, ids, logprobs, min(mass, 1.0))


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


def score(
    blocks: Iterator[torch.Tensor], targets: torch.Tensor, labels: torch.Tensor | None, num_top: int
) -> Scores:
    """Log-probabilities of `targets` [Q], of `labels` [Q, n], and of the `num_top` most likely tokens of each
    row.
    """
    parts = []
    labels = targets[:, None] if labels is None else labels
    of_blocks = zip(torch.split(targets, _BLOCK_ROWS), torch.split(labels, _BLOCK_ROWS), strict=True)
    for logits, (tokens, wanted) in zip(blocks, of_blocks, strict=True):
        of_labels = of_tokens(logits, wanted)
        parts.append([all_finite(logits), of_labels, *measure(logits, tokens, num_top).tensors()])
    finite, of_labels, *columns = (torch.cat(column) for column in zip(*parts, strict=True))
    return Scores(finite, of_labels, LogprobTensors(*columns))
