"""Penalties for tokens that were already said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.core.plan import Chunk
from engine.device.staging import upload

__all__ = ["Penalties"]


class Penalties:
    """What each slot's request has said, counted on the device, and the penalties for it.

    The counts live on the device because the newest token is known there one step before the host knows it.
    Memory is 5 bytes * vocabulary * requests, taken when the first request with a penalty comes.
    """

    def __init__(self, vocab_size: int, max_requests: int, device: torch.device) -> None:
        self._shape = (max_requests, vocab_size)
        self._device = device
        self._said = torch.empty(0)
        """[slot, vocab] int32: how often each token is in the output."""
        self._prompted = torch.empty(0)
        """[slot, vocab] bool: whether it is in the prompt."""
        self._counted: list[tuple[int, int] | None] = [None] * max_requests
        """For each slot, the request it was counted for and how many of its output tokens."""

    def apply(self, logits: torch.Tensor, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Penalised copy of `logits` [S, vocab], whose rows belong to `chunks`.

        Repetition divides positive and multiplies negative logits of every token in prompt or output;
        presence subtracts once, and frequency for each time, if the token is in the output.
        """
        self._catch_up(chunks)
        slots = self._slots(chunks)
        said, prompted = self._said[slots], self._prompted[slots]
        samplings = [chunk.request.sampling for chunk in chunks]
        repetition = self._column([s.repetition_penalty for s in samplings])
        presence = self._column([s.presence_penalty for s in samplings])
        frequency = self._column([s.frequency_penalty for s in samplings])
        in_output = said > 0
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(in_output | prompted, repeated, logits)
        return logits - frequency * said - presence * in_output

    def record(self, chunks: Sequence[Chunk], tokens: torch.Tensor) -> None:
        """Count the tokens [S] that were just sampled for `chunks`; `apply` came before."""
        self._said[self._slots(chunks), tokens] += 1
        for chunk in chunks:
            self._counted[chunk.slot] = (chunk.request.id, _sampled_before(chunk) + 1)

    def _catch_up(self, chunks: Sequence[Chunk]) -> None:
        """Count anew where a slot has another request, or the request said things elsewhere."""
        if len(self._said) == 0:
            self._said = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
            self._prompted = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
        for chunk in chunks:
            known = (chunk.request.id, _sampled_before(chunk))
            if self._counted[chunk.slot] != known:
                self._count(chunk)
                self._counted[chunk.slot] = known

    def _count(self, chunk: Chunk) -> None:
        vocab, request = self._shape[1], chunk.request
        said = request.output[: _sampled_before(chunk)]
        output = np.bincount(np.array(said, dtype=np.int64), minlength=vocab)
        self._said[chunk.slot] = upload(output, torch.int32, self._device)
        prompt = np.bincount(np.array(request.prompt, dtype=np.int64), minlength=vocab)
        self._prompted[chunk.slot] = upload(prompt > 0, torch.bool, self._device)

    def _slots(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        return upload([chunk.slot for chunk in chunks], torch.int64, self._device)

    def _column(self, values: list[float]) -> torch.Tensor:
        return upload(values, torch.float32, self._device)[:, None]


def _sampled_before(chunk: Chunk) -> int:
    assert chunk.output_index is not None, "only chunks that sample reach the sampler"
    return chunk.output_index
