"""The interface of attention backends. Models call only `forward`, the runner everything else."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from engine.core.batch.batch import Batch
from engine.modeling.layers.ops.ops import Rotation


class AttentionBackend(Protocol):
    """Attention over the paged pool for a batch that may mix prompt chunks and decodes.

    A step calls `prepare` once, then `forward` once a layer.
    """

    def prepare(self, batch: Batch) -> None:
        """Compute what all layers of this step share."""

    def forward(self, layer: int, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        """Write keys and values into the pool, then compute causal attention of each token over its request.

        `qkv` is `[T, heads + 2 * kv_heads, head_dim]`, queries and keys not yet rotated; it may be
        overwritten. Returns `[T, heads, head_dim]`. Of latents, `qkv` is `[T, heads + 1, row]`, finished, and
        the result `[T, heads, rank]`.
        """


@runtime_checkable
class GraphableAttention(AttentionBackend, Protocol):
    """A backend whose decodes can be captured in CUDA graphs.

    A captured `forward` reads the step's metadata from buffers with fixed addresses.
    """

    def init_graphs(self, max_batch: int, max_model_len: int) -> None:
        """Allocate the buffers that captured graphs of up to this many decodes read."""

    def prepare_capture(self, slots: torch.Tensor) -> None:
        """Point `forward` at those buffers while a graph of B decodes is captured.

        `slots` [G, B]: where keys and values go in each group; the caller fills it before a replay.
        """

    def prepare_replay(self, batch: Batch, batch_size: int) -> None:
        """Fill the buffers with `batch`, padded to `batch_size` decodes."""


@runtime_checkable
class PiecewiseAttention(GraphableAttention, Protocol):
    """A backend that other steps can be captured around: `store` is captured and `attend` is not."""

    def store(
        self,
        layer: int,
        qkv: torch.Tensor,
        rotation: Rotation | None,
        slots: torch.Tensor,
        queries: torch.Tensor,
    ) -> None:
        """Write keys and values into the pool, row t to `slots[t]`, and queries, `[T, heads, head_dim]`, to
        `queries`; all of them rotated.
        """

    def attend(self, layer: int, queries: torch.Tensor, out: torch.Tensor) -> None:
        """The rest of `forward`, for all rows of the prepared step; `out` is contiguous."""
