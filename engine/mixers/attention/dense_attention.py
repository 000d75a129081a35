"""Attention of queries over dense keys and values, with a layer's soft cap and sinks."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.modeling.layers.layer_attention import LayerAttention

_BLOCK_ROWS: Final = 32
"""Rows of queries of a block of torch's memory-efficient kernel, or a divisor of them."""


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    rule: LayerAttention,
    heads: tuple[int, ...],
) -> torch.Tensor:
    """q [.., rows, head_dim] over keys and values [.., tokens, head_dim].

    `heads`: the shape in which sinks broadcast.
    """
    # Where values are narrower than keys, torch prefers a kernel of cuDNN that fails on views of pages.
    narrow_on_gpu = q.is_cuda and rule.latent_rank is not None
    if q.is_cuda and mask is not None and q.shape[-2] % _BLOCK_ROWS == 1:
        # In a block of one row, torch's memory-efficient kernel takes heads that share keys by a stride of 0
        # for rows, and reads other rows of the mask (pytorch#191937, fixed by #191984).
        keys, values = keys.contiguous(), values.contiguous()
    if rule.soft_cap is None and rule.sinks is None and not narrow_on_gpu:
        return scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=rule.scale)
    scores = (q @ keys.transpose(-2, -1)).float() * rule.scale
    if rule.soft_cap is not None:
        scores = torch.tanh(scores / rule.soft_cap) * rule.soft_cap
    if mask is not None:
        scores += mask
    if rule.sinks is None:
        return scores.softmax(-1).to(q.dtype) @ values
    sinks = rule.sinks.view(heads).expand(*scores.shape[:-1], 1)
    weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    return weights.to(q.dtype) @ values
