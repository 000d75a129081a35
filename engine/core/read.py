"""A read: a request for numbers from its prompt, and not for tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from engine.errors import UnservableRequest
from engine.model_config.parts.layer_options import Pooling

MAX_LABELS: Final = 512
"""Largest number of label tokens of a request."""


@dataclass(frozen=True, slots=True)
class Read:
    """What is read from a prompt, once that is computed; the request ends then.

    The protobuf message `Read` has fields of the same names.
    """

    label_ids: tuple[int, ...] = ()
    """Tokens whose log-probabilities are wanted. None: the prompt is only computed, and stays cached."""
    pooling: str = ""
    """A `Pooling`: the vector of the prompt is wanted, in place of labels; empty: it is not."""

    def check(self, vocab_size: int) -> None:
        """Raises UnservableRequest for labels that are no tokens."""
        labels = self.label_ids
        if labels and not (len(labels) <= MAX_LABELS and 0 <= min(labels) <= max(labels) < vocab_size):
            raise UnservableRequest(f"labels must be at most {MAX_LABELS} token ids in [0, {vocab_size})")

    @property
    def needs_all_rows(self) -> bool:
        """Whether rows before the last are read too."""
        return self.pooling not in ("", Pooling.LAST)

    def num_rows(self, length: int, *, ends: bool) -> int:
        """How many of the last rows of a chunk are read; `ends`: the chunk ends the prompt."""
        return length if self.needs_all_rows else int(ends)

    def finished(self, total: Pooled) -> Pooled:
        """The vector of a prompt, from the sum over it."""
        divisor = Pooling(self.pooling).divisor(total.position)
        return replace(total, values=(np.frombuffer(total.values, "<f4") / np.float32(divisor)).tobytes())


@dataclass(frozen=True, slots=True)
class LabelLogprobs:
    """Log-probabilities of label tokens as the next one, over the whole vocabulary: one row.

    An `Output`, and a protobuf message of the same name.
    """

    position: int
    """The token after the row: the length of the prompt."""
    ids: list[int]
    logprobs: list[float]
    """float32."""
    mass: float
    """Probability of all labels together."""

    def __len__(self) -> int:
        return 1

    def part(self, first: int, end: int) -> Self:
        """The one row."""
        assert first == 0 < end
        return self


@dataclass(frozen=True, slots=True)
class Pooled:
    """The vector of a prompt, or of its first rows. An `Output`, and a protobuf message of the same name."""

    position: int
    """The token after the row that completes it: the length of the prompt."""
    values: bytes
    """float32, little-endian."""

    def __len__(self) -> int:
        return 1

    def part(self, first: int, end: int) -> Self:
        """The one row."""
        assert first == 0 < end
        return self

    def plus(self, earlier: Pooled) -> Self:
        """With the part of earlier rows."""
        total = np.frombuffer(self.values, "<f4") + np.frombuffer(earlier.values, "<f4")
        return replace(self, values=total.tobytes())


@dataclass(frozen=True, slots=True)
class PageSums:
    """Weighted sums over a part of a prompt, page by page. An `Output` that is not reported."""

    position: int
    """The first token."""
    end: int
    page_size: int
    rows: npt.NDArray[np.float32]
    """[pages that the part touches, d]."""

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, first: int, end: int) -> Self:
        bounds = list(page_parts(self.position, self.end, self.page_size))[first:end]
        return replace(self, position=bounds[0][0], end=bounds[-1][1], rows=self.rows[first:end])

    @property
    def parts(self) -> Iterator[tuple[int, int, npt.NDArray[np.float32]]]:
        """The first token of each, the token after the last, and the sum."""
        bounds = page_parts(self.position, self.end, self.page_size)
        return ((first, end, row) for (first, end), row in zip(bounds, self.rows, strict=True))

    @property
    def total(self) -> Pooled:
        return Pooled(self.end, self.rows.sum(axis=0, dtype=np.float32).tobytes())


def page_parts(start: int, end: int, page_size: int) -> Iterator[tuple[int, int]]:
    """Tokens [start, end), cut where pages end."""
    while start < end:
        upto = min((start // page_size + 1) * page_size, end)
        yield start, upto
        start = upto
