"""Rows of a step in which images take the place of embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class MediaRows:
    rows: Tensor
    """[M] int64: rows of the step."""
    values: Tensor
    """[M, d]: what the first layer gets there."""
    positions: Tensor | None = None
    """[3, T] int64: frames, rows and columns of all rows of the step; None: each has one position."""
    deeper: tuple[Tensor, ...] = ()
    """[M, d] each: what is added to the output of the first layers."""
    spans: tuple[tuple[int, int], ...] = ()
    """Rows, first and end, whose queries see all keys up to the end of the span."""
    spans_need_window: bool = False
    """Whether layers without a window have no spans."""

    def placed(self, x: Tensor) -> Tensor:
        """`x` [T, d] with the rows of images."""
        return x.index_copy(0, self.rows, self.values)

    def deepened(self, x: Tensor, layer: int) -> Tensor:
        """The output of a layer, [T, d]."""
        return x.index_add(0, self.rows, self.deeper[layer]) if layer < len(self.deeper) else x
