"""A read: a request for numbers from its prompt, and not for tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

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

    @property
    def needs_all_rows(self) -> bool:
        """Whether rows before the last are read too: then no cached prefix is used."""
        return self.pooling not in ("", Pooling.LAST)

    def num_rows(self, length: int, *, ends: bool) -> int:
        """How many of the last rows of a chunk are read; `ends`: the chunk ends the prompt."""
        return length if self.needs_all_rows else int(ends)


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
