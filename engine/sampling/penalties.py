"""Repetition, presence and frequency penalties on a CPU. For GPUs see `engine.sampling.token_marks`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.core.plan import Chunk, ChunkKind


class Penalties:
    """Token counts of each slot's request, and the penalties that follow from them.

    Tokens are counted when they are sampled, since the next step may begin before the request has its newest
    token; drafted ones when they are accepted, and until then for their own rows alone. Memory is 5 bytes *
    vocabulary * requests, allocated with the first request with a penalty.
    """

    def __init__(self, vocab_size: int, max_requests: int) -> None:
        self._shape = (max_requests, vocab_size)
        self._said = torch.empty(0)
        """[slot, vocab] int32: how often each token is in the output."""
        self._prompted = torch.empty(0)
        """[slot, vocab] bool: whether it is in the prompt."""
        self._counted: list[tuple[int, int] | None] = [None] * max_requests
        """For each slot, the request that was counted and the number of its output tokens."""

    def apply(self, logits: torch.Tensor, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Penalised copy of `logits` [S, vocab], whose rows belong to `chunks`.

        Repetition divides positive and multiplies negative logits of every token in the prompt or output.
        Presence is subtracted once for tokens in the output, frequency once per occurrence.
        """
        self._catch_up(chunks)
        slots = self._slots(chunks)
        said, prompted = self._said[slots], self._prompted[slots]
        for row, chunk in enumerate(chunks):
            for token in chunk.draft:
                said[row, token] += 1
        samplings = [chunk.request.sampling for chunk in chunks]
        repetition = self._column([s.repetition_penalty for s in samplings])
        presence = self._column([s.presence_penalty for s in samplings])
        frequency = self._column([s.frequency_penalty for s in samplings])
        in_output = said > 0
        repeated = logits * torch.where(logits > 0, 1.0 / repetition, repetition)
        logits = torch.where(in_output | prompted, repeated, logits)
        return logits - frequency * said - presence * in_output

    def record(self, chunks: Sequence[Chunk], tokens: torch.Tensor) -> None:
        """Count the tokens [S] that were sampled for `chunks`, after `apply`."""
        rows = [row for row, chunk in enumerate(chunks) if chunk.kind is not ChunkKind.VERIFY]
        if not rows:
            return
        chunks = [chunks[row] for row in rows]
        self._said[self._slots(chunks), tokens[rows]] += 1
        for chunk in chunks:
            self._counted[chunk.slot] = (chunk.request.id, _sampled_before(chunk) + 1)

    def _catch_up(self, chunks: Sequence[Chunk]) -> None:
        """Recount slots that have a new request, or whose request produced tokens on another worker."""
        if len(self._said) == 0:
            self._said = torch.zeros(self._shape, dtype=torch.int32)
            self._prompted = torch.zeros(self._shape, dtype=torch.bool)
        for chunk in chunks:
            known = (chunk.request.id, _sampled_before(chunk))
            if self._counted[chunk.slot] != known:
                self._count(chunk)
                self._counted[chunk.slot] = known

    def _count(self, chunk: Chunk) -> None:
        vocab, request = self._shape[1], chunk.request
        counted = self._counted[chunk.slot]
        if counted is not None and counted[0] == request.id and counted[1] < _sampled_before(chunk):
            for token in request.output[counted[1] : _sampled_before(chunk)]:  # accepted drafts
                self._said[chunk.slot, token] += 1
            return
        said = request.output[: _sampled_before(chunk)]
        output = np.bincount(np.array(said, dtype=np.int64), minlength=vocab)
        self._said[chunk.slot] = torch.from_numpy(output)
        prompt = np.bincount(np.array(request.prompt, dtype=np.int64), minlength=vocab)
        self._prompted[chunk.slot] = torch.from_numpy(prompt > 0)

    def _slots(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        return torch.tensor([chunk.slot for chunk in chunks])

    def _column(self, values: list[float]) -> torch.Tensor:
        return torch.tensor(values)[:, None]


def _sampled_before(chunk: Chunk) -> int:
    assert chunk.output_index is not None, "only chunks that sample reach the sampler"
    return chunk.output_index - len(chunk.draft)
