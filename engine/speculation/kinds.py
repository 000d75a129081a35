"""Kinds of drafters, and what a request says about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

TokenId: TypeAlias = int


class DrafterKind(Enum):
    """Where drafted tokens come from."""

    PREDICTION = "prediction"
    """The client's own guess of the answer (OpenAI's Predicted Outputs)."""
    NGRAM = "ngram"
    """The request's prompt and its answer so far."""
    SUFFIX = "suffix"
    """Earlier answers to requests of the same tenant."""
    MODEL = "model"
    """A smaller model with the same vocabulary, or a head that reads the model's hidden states."""


class Speculation(Enum):
    """Which drafters a worker has."""

    OFF = "off"
    PREDICTION = "prediction"
    NGRAM = "ngram"
    SUFFIX = "suffix"
    MODEL = "model"
    MTP = "mtp"
    AUTO = "auto"

    @property
    def drafters(self) -> frozenset[DrafterKind]:
        """A client's prediction is used by all that draft at all."""
        match self:
            case Speculation.OFF:
                return frozenset()
            case Speculation.AUTO:
                return frozenset(DrafterKind)
            case Speculation.MTP:
                return Speculation.MODEL.drafters
            case _:
                return frozenset({DrafterKind.PREDICTION, DrafterKind(self.value)})


@dataclass(frozen=True, slots=True)
class DraftHints:
    """Hints of one request. They change how fast tokens come, and never which."""

    prediction: Sequence[int] = ()
    """Tokens of the answer as its client expects it, in the vocabulary."""
    drafters: frozenset[DrafterKind] | None = None
    """Drafters of the worker that the request may use; None: all of them."""


NO_HINTS: Final = DraftHints()
