"""Which experts have computed the tokens of a request: rows in the order of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from common.sidecars import Rows


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """An `Output`, and a protobuf message of the same name."""

    position: int
    """Position of the first of these tokens in prompt and answer."""
    layers: int
    per_token: int
    rows: bytes
    """[tokens, layers, per_token] unsigned integers of 8 or 16 bits, little-endian."""
    count: int
    """Tokens."""

    @classmethod
    def of(cls, position: int, rows: Rows) -> RoutedExperts:
        """`rows` [tokens, layers, per_token]: see `common.sidecars.routed_experts`."""
        count, layers, per_token = rows.shape
        return cls(position, layers, per_token, np.ascontiguousarray(rows).tobytes(), count)

    def __len__(self) -> int:
        return self.count

    def part(self, first: int, end: int) -> Self:
        count = max(min(end, self.count) - first, 0)
        size = len(self.rows) // self.count
        rows = self.rows[first * size : (first + count) * size]
        return replace(self, position=self.position + first, rows=rows, count=count)
