"""Distributions of prompt and answer lengths, and their notation in flags."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Lengths(Protocol):
    """A distribution of lengths in tokens."""

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """`count` lengths, each at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    length: int

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        return [self.length] * count


@dataclass(frozen=True, slots=True)
class Uniform:
    low: int
    high: int

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        return [int(length) for length in rng.integers(self.low, self.high + 1, count)]


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Many short and few long ones, as in real traffic; capped at `high`."""

    median: int
    sigma: float
    high: int

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        lengths = rng.lognormal(math.log(self.median), self.sigma, count)
        return [int(length) for length in np.clip(np.rint(lengths), 1, self.high)]


def parse_lengths(text: str) -> Lengths:
    """Read "512", "uniform:LOW:HIGH" or "lognormal:MEDIAN:SIGMA:HIGH".

    Raises ValueError with the reason.
    """
    kind, *numbers = text.split(":")
    try:
        lengths = _parse(kind, numbers)
    except (ValueError, TypeError):
        raise ValueError(f"{text!r} is neither N, uniform:LOW:HIGH nor lognormal:MEDIAN:SIGMA:HIGH") from None
    shortest, longest = _bounds(lengths)
    if not 1 <= shortest <= longest:
        raise ValueError(f"{text!r}: lengths start at 1, and the upper bound is not below the lower")
    return lengths


def _parse(kind: str, numbers: list[str]) -> Lengths:
    if kind == "uniform":
        return Uniform(*map(int, numbers))
    if kind == "lognormal":
        median, sigma, high = numbers
        return LogNormal(int(median), float(sigma), int(high))
    return Fixed(int(kind), *numbers)  # a TypeError for "512:7"


def _bounds(lengths: Lengths) -> tuple[int, int]:
    match lengths:
        case Uniform(low, high):
            return low, high
        case LogNormal(median, sigma, high):
            return (median, high) if sigma >= 0 else (0, 0)
        case Fixed(length):
            return length, length
    raise TypeError(f"unknown distribution {lengths!r}")
