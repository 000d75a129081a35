"""The layout of the recurrent state of a request: what a rank has of it, and what makes its digest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """Of the whole model, over all ranks."""
    rows: tuple[int, ...]
    """Bytes of a head, of each row."""

    @property
    def head_bytes(self) -> int:
        return sum(self.rows)

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

    def by_head(self, state: Any, heads: int) -> Sequence[Any]:
        """Views `[head, bytes]` of the rows of `state`, an array or tensor of bytes of that many heads.

        Side by side, they have all of a head in one row.
        """
        return [
            state[start : start + heads * row].reshape(heads, row)
            for start, row in zip(self.starts(heads), self.rows, strict=True)
        ]
