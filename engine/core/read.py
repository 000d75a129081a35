"""A read: a request for numbers from its prompt, and not for tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

MAX_LABELS: Final = 512
"""Largest number of label tokens of a request."""


@dataclass(frozen=True, slots=True)
class Read:
    """What is read from the last row of a prompt, once that is computed; the request ends then.

    The protobuf message `Read` has fields of the same names.
    """

    label_ids: tuple[int, ...] = ()
    """Tokens whose log-probabilities are wanted. None: the prompt is only computed, and stays cached."""


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
