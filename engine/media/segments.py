"""Attention within segments, for vision models that attend within windows and images.

The modules of transformers run one kernel for each segment: some thousand launches for an image. With this
function they make one call for all of them, and segments of equal length share a kernel.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

NAME: Final = "baton_flash_segments"
"""Modules pass all segments at once to implementations with "flash" in their name."""
_KEPT: Final = 4
"""Tensors of segments that are remembered: a forward pass has one of windows and one of images."""


class _Group(NamedTuple):
    """Segments of one length."""

    rows: Tensor
    """[segments * length]: rows of the input."""
    segments: int


_known: list[tuple[Tensor, list[_Group]]] = []


def in_segments(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Query, key and value [1, heads, T, d] to [1, T, heads, d].

    `cu_seq_lens_q`: 0, then the ends of the segments.
    """
    assert attention_mask is None
    assert cu_seq_lens_q is not None
    groups = _groups_of(cu_seq_lens_q)
    found = torch.empty_like(query[0])
    for rows, count in groups:
        q, k, v = (_split(each, rows, count) for each in (query, key, value))
        attended = functional.scaled_dot_product_attention(q, k, v, scale=scaling)
        found.index_copy_(1, rows, attended.transpose(0, 1).reshape(found.shape[0], len(rows), -1))
    return found.transpose(0, 1)[None], None


def _split(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """[segments, heads, length, d]."""
    _, heads, _, features = x.shape
    return x[0].index_select(1, rows).view(heads, count, -1, features).transpose(0, 1)


def _groups_of(ends: Tensor) -> list[_Group]:
    """Waits for the device when it sees a tensor first, and not again in the layers after that."""
    for seen, groups in _known:
        if seen is ends:
            return groups
    bounds = ends.tolist()
    by_length: dict[int, list[int]] = {}
    for first, end in pairwise(bounds):
        if end > first:
            by_length.setdefault(end - first, []).append(first)
    groups = [
        _Group((torch.tensor(firsts)[:, None] + torch.arange(length)).flatten().to(ends.device), len(firsts))
        for length, firsts in by_length.items()
    ]
    _known.append((ends, groups))
    del _known[:-_KEPT]
    return groups


AttentionInterface.register(NAME, in_segments)
