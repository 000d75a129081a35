"""Drawing tokens from distributions, by the Gumbel-max trick.

The caller brings a key of randomness a row (`engine.sampling.noise`), so that a draw is a pure function. Each
row depends on its own parameters alone, never on what else is in the batch.
"""

from __future__ import annotations

from typing import Final

import torch

from engine.sampling.noise import gumbel

__all__ = ["all_finite", "draw", "draw_truncated", "likeliest"]

MIN_TEMPERATURE: Final = 1e-5
"""Colder is the same as greedy, and dividing by less would overflow."""
SHORTLIST: Final = 512
"""Likeliest tokens that are looked at before the whole vocabulary is sorted."""


def all_finite(logits: torch.Tensor) -> torch.Tensor:
    """[S] bool: whether all of a row of `logits` [S, vocab] are finite."""
    # A sum is finite only if every term is: one pass over the vocabulary, and no mask of its size.
    return logits.sum(dim=-1, dtype=torch.float32).isfinite()


def likeliest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token of each row of `logits` [S, vocab], [S] int64, and `all_finite`."""
    if logits.is_cuda:
        from engine.kernels.argmax import likeliest as fused  # Triton comes with torch's CUDA builds alone

        return fused(logits)
    return logits.argmax(dim=-1), all_finite(logits)


def draw(logits: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Draw from softmax(logits / temperature).

    `logits` is `[S, vocab]`, `temperature` `[S]`, `keys` `[S, 2]`; returns `[S]` token ids.
    """
    tokens = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)
    return _scaled(logits, temperature).add_(gumbel(keys, tokens)).argmax(dim=-1)


def draw_truncated(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    keys: torch.Tensor,
    *,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Draw from the likeliest tokens: at most `top_k`, none below `min_p` of the best, `top_p` of the rest.

    `top_p` is a share of the mass that the other two left; the best token always stays. Parameters are
    `[S]`; `top_k` is int64 and at least 1, the vocabulary's size when off. Returns `[S]` token ids.
    """
    probs = _scaled(logits, temperature).softmax(dim=-1)
    floor = min_p[:, None] * probs.amax(dim=-1, keepdim=True)
    only_top_p = ((top_k >= probs.shape[-1]) & (min_p == 0.0))[:, None]
    likely, ids = _likeliest(probs, top_k[:, None], top_p[:, None], floor, only_top_p)
    cumulative = likely.cumsum(dim=-1)
    # All three cuts keep the likeliest, so what they leave together is the first `kept` tokens.
    kept = torch.minimum(top_k[:, None], (likely >= floor).sum(dim=-1, keepdim=True)).clamp_(min=1)
    mass = torch.where(only_top_p, 1.0, cumulative.gather(1, kept - 1))
    kept = torch.minimum(kept, (cumulative < top_p[:, None] * mass).sum(dim=-1, keepdim=True) + 1)
    cut = torch.arange(likely.shape[-1], device=likely.device) >= kept
    noisy = likely.log_().add_(gumbel(keys, ids.int())).masked_fill_(cut, -torch.inf)
    return ids.gather(1, noisy.argmax(dim=-1, keepdim=True)).squeeze(1)


def _scaled(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    return logits / temperature.clamp(min=MIN_TEMPERATURE)[:, None]


def _likeliest(
    probs: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    floor: torch.Tensor,
    only_top_p: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and ids of the likeliest tokens in order, at least as many as the cuts leave.

    Sorting a vocabulary takes a CPU ten times as long as a short list, which nearly always is enough.
    A GPU sorts at once: to ask whether the list is enough, it would have to wait for the answer.
    """
    if probs.device.type == "cpu" and probs.shape[-1] > SHORTLIST:
        likely, ids = probs.topk(SHORTLIST, dim=-1)
        enough = (top_k <= SHORTLIST) | (likely[:, -1:] < floor)
        enough |= only_top_p & (likely.sum(dim=-1, keepdim=True) >= top_p)
        if bool(enough.all()):
            return likely, ids
    likely, ids = probs.sort(dim=-1, descending=True)
    return likely, ids
