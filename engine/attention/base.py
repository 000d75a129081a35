"""What a runner asks of an attention backend; models need only its `forward`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from engine.batch import Batch

__all__ = ["AttentionBackend", "GraphableAttention"]


class AttentionBackend(Protocol):
    """Attention over the paged pool for a batch that may mix prompt chunks and decodes.

    A step calls `prepare` once, then `forward` once a layer.
    """

    def prepare(self, batch: Batch) -> None:
        """Compute whatever all layers of this step share."""

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write k and v into the pool, then let each token attend to its request's tokens up to itself.

        q is `[T, heads, head_dim]`, k and v are `[T, kv_heads, head_dim]`; returns `[T, heads, head_dim]`.
        """


@runtime_checkable
class GraphableAttention(AttentionBackend, Protocol):
    """A backend whose steps can be captured in CUDA graphs.

    Of decodes, `forward` is captured too: it then reads the step's metadata from buffers whose addresses
    never change. Of other steps `store` is captured and `attend` is not.
    """

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Write k and v, `[T, kv_heads, head_dim]`, into the pool: row t to `slots[t]`."""

    def attend(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        """The rest of `forward`, for all rows of the step that was prepared; `out` is contiguous."""

    def init_graphs(self, max_batch: int, max_model_len: int) -> None:
        """Allocate the buffers that captured graphs of up to `max_batch` decodes read."""

    def fits_graph(self, batch: Batch, batch_size: int) -> bool:
        """Whether the graph for so many decodes would compute these as fast as they can be."""

    def prepare_capture(self, batch_size: int) -> None:
        """Point `forward` at those buffers while a decode graph of this size is captured."""

    def prepare_replay(self, batch: Batch, batch_size: int) -> None:
        """Fill those buffers with `batch`, padded to `batch_size` decodes."""
