"""Samples the next tokens of a batch, each row with its request's parameters.

A greedy batch costs an argmax. Other batches go to `engine.sampling.cpu` on a CPU and to
`engine.sampling.fused` on a GPU. Both draw the same tokens, except where sums are equal up to float32
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import torch

from engine.core.plan import Chunk, ChunkKind
from engine.core.request import Request
from engine.core.sampling_params import MAX_LOGPROBS, SamplingParams
from engine.grammar.grammar import Grammar, GrammarKind
from engine.sampling.cpu import TorchSampling
from engine.sampling.gumbel_sample import greedy_sample
from engine.sampling.sampled import Sampled
from engine.sampling.token_masks import TokenMasks

_EVERYTHING: Final = SamplingParams(
    max_tokens=2,
    min_tokens=1,
    temperature=1.0,
    top_p=0.5,
    top_k=100,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logprobs=MAX_LOGPROBS,
    logit_bias=((0, 1.0),),
    grammar=Grammar(GrammarKind.REGEX, ".*"),
)


class _Backend(Protocol):
    def sample(self, logits: torch.Tensor, chunks: Sequence[Chunk], masks: TokenMasks | None) -> Sampled: ...


class Sampler:
    def __init__(
        self,
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        max_requests: int,
        max_rows: int | None = None,
        max_edited_drafts: int = 0,
        device: torch.device,
        processed_logprobs: bool = False,
    ) -> None:
        """`max_rows`: most rows of a call; None: `max_requests`. `max_edited_drafts`: see `FusedSampling`.
        `processed_logprobs`: see `EngineConfig`; not on a GPU."""
        self._max_edited_drafts = max_edited_drafts
        self._max_requests = max_requests
        self._vocab_size = vocab_size
        self._backend: _Backend
        if device.type == "cuda":
            if processed_logprobs:
                raise ValueError("the sampling kernels of a GPU do not report processed log-probabilities")
            from engine.sampling.fused import FusedSampling  # Triton ships only with torch's CUDA builds

            self._backend = FusedSampling(
                vocab_size=vocab_size,
                eos_token_ids=eos_token_ids,
                max_requests=max_requests,
                max_rows=max_rows,
                max_edited_drafts=max_edited_drafts,
                device=device,
            )
        else:
            self._backend = TorchSampling(
                vocab_size=vocab_size,
                eos_token_ids=eos_token_ids,
                max_requests=max_requests,
                processed_logprobs=processed_logprobs,
            )

    def sample(
        self, logits: torch.Tensor, chunks: Sequence[Chunk], masks: TokenMasks | None = None
    ) -> Sampled:
        """Choose one token for each row of `logits` [S, vocab], any float dtype, which belong to `chunks`.

        Logit_bias, penalties, min_tokens, `masks`, temperature and truncation apply, in this order.
        Log-probabilities are of the distribution before all of them, with `processed_logprobs` after them.
        `masks` covers every row with a grammar. `logits` is consumed.
        """
        if masks is None and all(chunk.request.sampling.argmax_only for chunk in chunks):
            return Sampled(*greedy_sample(logits), None)
        return self._backend.sample(logits, chunks, masks)

    def profile_run(self, logits: torch.Tensor) -> None:
        """Run every operation once on rows like `logits`: compiles all kernels and allocates their memory.

        `logits` are consumed. Without drafts, they have at most as many rows as there are requests.
        """
        everything = replace(_EVERYTHING, top_k=min(_EVERYTHING.top_k, self._vocab_size - 1))
        number = len(logits)
        words = np.full((number, -(-self._vocab_size // 32)), -1, dtype=np.int32)
        for sampling, masks in (
            (SamplingParams(max_tokens=2), None),
            (everything, TokenMasks(list(range(number)), words)),
        ):
            slots = min(number, self._max_requests)
            requests = [Request(-1 - slot, [0], sampling, slot=slot) for slot in range(slots)]
            rows = (requests[row % slots] for row in range(number))
            self.sample(logits, [Chunk(request, request.slot, 0, 1, 0) for request in rows], masks)
        if self._max_edited_drafts and number > 1:
            request = Request(-1 - self._max_requests, [0], everything, slot=0)
            chunk = Chunk(request, 0, 0, 2, 0, kind=ChunkKind.VERIFY, draft=(0,))
            self.sample(logits[:2], chunk.rows(), TokenMasks([0, 1], words[:2]))
