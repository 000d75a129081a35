"""Typed questions about a state, and how they are asked: with options whose labels are single tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import product
from string import ascii_uppercase
from typing import Final

YES_NO: Final = ("Yes", "No")
LETTERS: Final = tuple(ascii_uppercase)
PAIRS: Final = tuple(map("".join, product(ascii_uppercase, repeat=2)))


class QuestionKind(Enum):
    PREDICATE = "predicate"
    """Whether a statement is true; its options are yes and no."""
    CHOICE = "choice"
    SCORE = "score"
    """Its options are ordered levels."""


@dataclass(frozen=True, slots=True)
class QuestionOption:
    text: str
    description: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.description}" if self.description else self.text


@dataclass(frozen=True, slots=True)
class Question:
    kind: QuestionKind
    instructions: str
    options: tuple[QuestionOption, ...]

    def asked(self, labels: tuple[str, ...]) -> str:
        """The question as text, with a label for each option."""
        head = self.instructions.strip()
        if self.kind is QuestionKind.PREDICATE:
            meanings = [
                f"{label}: {option.description}"
                for label, option in zip(labels, self.options, strict=True)
                if option.description
            ]
            statement = f'Is the following true of the above? "{head}"'
            return "\n".join([statement, *meanings, f"Answer with {labels[0]} or {labels[1]} alone."])
        lines = [f"{label}. {option}" for label, option in zip(labels, self.options, strict=True)]
        what = "level" if self.kind is QuestionKind.SCORE else "option"
        return "\n".join([head, *lines, f"Answer with the letter of one {what} alone."])


@dataclass(frozen=True, slots=True)
class OptionShares:
    """Answer to a question."""

    probabilities: tuple[float, ...]
    """One for each option; they add up to 1."""
    mass: float
    """Probability of all its labels among all tokens."""

    @property
    def best(self) -> int:
        """The most likely option, the first of equal ones."""
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def confidence(self) -> float:
        """Probability of the best option among all tokens."""
        return self.probabilities[self.best] * self.mass

    @property
    def level(self) -> float:
        """Expected level, from 0."""
        return sum(level * probability for level, probability in enumerate(self.probabilities))
