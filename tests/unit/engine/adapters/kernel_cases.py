"""Rows with adapters, and what kernels must add to their products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    rows: int
    features: int
    pieces: tuple[range, ...]
    rank: int
    slots: int = 4
    adapted: float = 0.8
    """Share of the rows that have an adapter."""

    def tensors(
        self, dtype: torch.dtype, device: str, seed: int = 0
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """`product`, `x`, `a`, `b` and `slots` of `add_low_rank`."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(dtype).to(device)

        slots = torch.randint(self.slots, (self.rows,), generator=generator)
        slots[torch.rand(self.rows, generator=generator) >= self.adapted] = -1
        out = self.pieces[-1].stop
        a = normal(self.slots, len(self.pieces), self.rank, self.features) / self.features**0.5
        b = normal(self.slots, out, self.rank)
        return normal(self.rows, out), normal(self.rows, self.features), a, b, slots.to(device)


CASES = (
    Case(1, 64, (range(48),), 16),
    Case(5, 300, (range(128), range(128, 160), range(160, 192)), 16),
    Case(16, 512, (range(256), range(256, 512)), 32),
    Case(33, 2048, (range(200),), 64),
    Case(70, 768, (range(384), range(384, 512)), 16, adapted=1.0),
    Case(20, 256, (range(64),), 16, adapted=0.0),
    Case(40, 130, (range(17), range(17, 50)), 8),
)


def expected(
    product: Tensor, x: Tensor, a: Tensor, b: Tensor, slots: Tensor, pieces: tuple[range, ...]
) -> Tensor:
    """In float64."""
    wanted = product.double()
    for row, slot in enumerate(slots.tolist()):
        for number, piece in enumerate(pieces if slot >= 0 else ()):
            inner = a[slot, number].double() @ x[row].double()
            wanted[row, piece.start : piece.stop] += b[slot, piece.start : piece.stop].double() @ inner
    return wanted


def add_to_few(
    product: Tensor, x: Tensor, a: Tensor, b: Tensor, slots: Tensor, pieces: tuple[range, ...]
) -> None:
    """What `add_low_rank` does, by the kernels for few rows."""
    from engine.kernels.matmul.adapters_few_rows import expand, shrink

    expand(product, shrink(x, a, slots), b, slots, pieces)
