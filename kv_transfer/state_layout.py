"""The layout of the recurrent state of a request: what a rank has of it, and what makes its digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_WORDS: Final = (4, 2, 1)


@dataclass(frozen=True, slots=True)
class StateLayout:
    """A state is rows of heads, one after another, each contiguous: `[row][head][bytes of the row's heads]`.

    A matrix for each value head is one row, and the window of a convolution over queries, keys and values
    three. Heads are key heads: the values of a head are those of all value heads that it serves. A rank has
    consecutive heads, equally many on every rank, of every row.
    """

    heads: int
    """Heads of the whole model, over all ranks."""
    groups: tuple[tuple[int, tuple[int, ...]], ...]
    """Rows that repeat, such as those of every layer: how often, and the bytes of a head in each."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Bytes of a head in each row."""
        return tuple(row for repeats, rows in self.groups for row in rows * repeats)

    @property
    def head_bytes(self) -> int:
        return sum(repeats * sum(rows) for repeats, rows in self.groups)

    @property
    def word_bytes(self) -> int:
        """The largest size of words that every row's heads can be cut into."""
        return next(size for size in _WORDS if all(row % size == 0 for row in self.rows))

    def starts(self, heads: int) -> Iterator[int]:
        """Where each row begins in a state of that many heads."""
        begin = 0
        for row in self.rows:
            yield begin * heads
            begin += row

    def by_head(self, state: Any, heads: int, item: int = 1) -> list[Any]:
        """The state as arrays `[head, ..]`, which side by side have all of a head in one row.

        `state`: an array or tensor of that many heads, of items of `item` bytes.
        """
        arrays: list[Any] = []
        begin = 0
        for repeats, rows in self.groups:
            sizes = [heads * row // item for row in rows]
            group = state[begin : begin + repeats * sum(sizes)].reshape(repeats, -1)
            begin += repeats * sum(sizes)
            start = 0
            for size in sizes:
                row = group[:, start : start + size].reshape(repeats, heads, -1)
                arrays.append(row.swapaxes(0, 1).reshape(heads, -1))
                start += size
        return arrays
