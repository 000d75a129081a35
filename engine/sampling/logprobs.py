"""Log-probabilities of the chosen tokens and of the most likely alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from engine.core.plan import Chunk
from engine.core.sampling_params import SamplingParams, TokenLogprobs
from engine.device.staging import send

EXCLUDED: Final = -9999.0
"""Log-probability, as vLLM has it, of a token that the sampled distribution excludes."""


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """For each of L rows with log-probabilities; k is the largest number of alternatives requested."""

    chosen: torch.Tensor
    """[L] float32."""
    rank: torch.Tensor
    """[L] int64, from 1."""
    top: torch.Tensor
    """[L, k] float32, most likely first."""
    top_ids: torch.Tensor
    """[L, k] int64."""
    named: torch.Tensor | None = None
    """[L, n] float32: of the tokens that requests name; any after those of a row. None: no request does."""

    def tensors(self) -> list[torch.Tensor]:
        found = [self.chosen, self.rank, self.top, self.top_ids]
        return found if self.named is None else [*found, self.named]

    def to_tokens(self, wanted: Sequence[SamplingParams]) -> list[TokenLogprobs]:
        """Convert tensors on the host: row i with the alternatives that `wanted[i]` asks for."""
        found = self._alternatives([params.logprobs or 0 for params in wanted])
        if self.named is None:
            return found
        return [
            replace(each, top=tuple(zip(ids, row[: len(ids)].tolist(), strict=True))) if ids else each
            for each, row, ids in zip(found, self.named, (p.logprob_token_ids for p in wanted), strict=True)
        ]

    def _alternatives(self, wanted: Sequence[int]) -> list[TokenLogprobs]:
        """Row i with its first `wanted[i]` alternatives."""
        rows = zip(
            self.chosen.tolist(),
            self.rank.tolist(),
            self.top_ids.tolist(),
            self.top.tolist(),
            wanted,
            strict=True,
        )
        return [
            TokenLogprobs(chosen, rank, tuple(zip(ids[:k], values[:k], strict=True)))
            for chosen, rank, ids, values, k in rows
        ]


def of_tokens(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of `tokens` [L, n], from `logits` [L, vocab], in float32."""
    return (logits.gather(1, tokens).float() - _totals(logits)).clamp_(min=EXCLUDED)


def _totals(logits: torch.Tensor) -> torch.Tensor:
    """Logarithm of the sum of exp(logit) of each row: [L, vocab] -> [L, 1] float32."""
    if logits.is_cuda:
        from engine.kernels.sampling.totals import log_totals  # Triton comes with torch's CUDA builds alone

        return log_totals(logits).unsqueeze(1)
    return logits.float().logsumexp(dim=-1, keepdim=True)


def of_named(logits: torch.Tensor, chunks: Sequence[Chunk]) -> torch.Tensor | None:
    """Log-probabilities of the tokens that requests name; see `LogprobTensors.named`. Rows as `chunks`."""
    most = max(len(chunk.request.sampling.logprob_token_ids) for chunk in chunks)
    if not most:
        return None
    tokens = np.zeros((len(chunks), most), dtype=np.int64)
    for row, chunk in enumerate(chunks):
        ids = chunk.request.sampling.logprob_token_ids
        tokens[row, : len(ids)] = ids
    (flat,) = send([tokens.reshape(-1)], logits.device)
    return of_tokens(logits, flat.view(tokens.shape))


def measure(logits: torch.Tensor, tokens: torch.Tensor, num_top: int) -> LogprobTensors:
    """Log-probabilities of `tokens` [L] and of the `num_top` most likely tokens, from `logits` [L, vocab]."""
    total = _totals(logits)
    logits = logits.float()
    chosen = logits.gather(1, tokens[:, None])
    top, top_ids = logits.topk(num_top, dim=-1)
    return LogprobTensors(
        chosen=(chosen - total).squeeze(1),
        rank=(logits > chosen).sum(dim=-1) + 1,
        top=(top - total).clamp_(min=EXCLUDED),
        top_ids=top_ids,
    )
