"""Selection of what computes the layers with a recurrent state."""

from __future__ import annotations

import logging

import torch

from engine.kv.cache.state_pool import StatePool
from engine.mixers.attention.base import AttentionBackend, GraphableAttention
from engine.mixers.recurrence.stateful_attention import GraphableStateful, StatefulAttention
from engine.mixers.recurrence.torch_recurrence import TorchRecurrence

logger = logging.getLogger(__name__)


def with_states(
    attention: AttentionBackend, pool: StatePool, dtype: torch.dtype, *, max_verified: int = 0
) -> StatefulAttention:
    """`attention`, and the fastest recurrence for the pool's device and activations in `dtype`.

    `max_verified`: most decodes and drafts of a step; 0: there are no drafts.
    """
    if not pool.layer(0)[0].is_cuda:
        return StatefulAttention(attention, TorchRecurrence(pool))
    from engine.mixers.recurrence.triton_recurrence import (  # Triton ships only with torch's CUDA builds
        TritonRecurrence,
        suits_kernels,
    )

    if not suits_kernels(pool.spec, dtype):
        logger.warning(
            "recurrent layers run in plain torch, which is many times slower: %s, %s", pool.spec, dtype
        )
        return StatefulAttention(attention, TorchRecurrence(pool))
    if isinstance(attention, GraphableAttention):
        return GraphableStateful(attention, TritonRecurrence(pool, max_verified))
    return StatefulAttention(attention, TritonRecurrence(pool, max_verified))
