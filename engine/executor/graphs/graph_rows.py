"""The rows of a batch where captured graphs read them."""

from __future__ import annotations

import torch

from engine.core.batch.batch import padded_rows


class GraphRows:
    """One buffer for graphs of all sizes. Each has a layout of its own, without gaps, so that one copy from
    the host writes the rows of a batch and the padding behind them."""

    def __init__(
        self,
        *,
        num_groups: int,
        largest: int,
        scratch_slot: int,
        device: torch.device,
        adapters: bool = False,
    ) -> None:
        """`num_groups`: of the model's layers. `scratch_slot`: where padding writes its keys and values.
        `adapters`: whether the model takes them."""
        self._num_groups = num_groups
        self._num_rows = 2 + num_groups + adapters
        self._scratch_slot = scratch_slot
        ints = self._num_rows * padded_rows(largest)
        self._buffer = torch.zeros(ints, dtype=torch.int64, device=device)
        self._of_sizes: dict[int, torch.Tensor] = {}

    def place(self, size: int) -> torch.Tensor:
        """Rows with padding: where `BatchBuilder.build` puts a batch for a graph of this size."""
        rows = self._of_sizes.get(size)
        if rows is None:
            columns = padded_rows(size)
            rows = self._buffer[: self._num_rows * columns].view(self._num_rows, columns)
            self._of_sizes[size] = rows
        return rows

    def slots(self, rows: torch.Tensor) -> torch.Tensor:
        """[G, size]: where keys and values go in each group."""
        return rows[2 : 2 + self._num_groups]

    def padding(self, size: int) -> torch.Tensor:
        """Rows of this size: what a graph of this size is captured with; now all padding."""
        rows = self.place(size)
        rows[:2] = 0
        rows[2:] = self._scratch_slot
        rows[2 + self._num_groups :] = -1
        return rows[:, :size]
