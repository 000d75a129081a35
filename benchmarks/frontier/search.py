"""Finds the largest request rate at which enough answers are good, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

ShareAt: TypeAlias = Callable[[float], float]
"""From requests per second to the share of good answers."""

WANTED: Final = 0.9


@dataclass(frozen=True, slots=True)
class Search:
    start: float = 4.0
    """First rate that is tried, in requests per second."""
    wanted: float = WANTED
    precision: float = 0.01
    """Relative precision of the result, which is below the frontier by at most this."""
    stride: float = 1.25
    """Factor between rates, until one reaches `wanted` and the next does not."""
    lowest: float = 0.02
    highest: float = 10_000.0

    def __post_init__(self) -> None:
        if not self.lowest <= self.start <= self.highest:
            raise ValueError(f"a search from {self.start:g} within {self.lowest:g} to {self.highest:g}")
        if self.precision <= 0 or self.stride <= 1:
            raise ValueError("a search needs a precision above 0 and a stride above 1")


@dataclass(frozen=True, slots=True)
class Frontier:
    rate: float
    """Requests per second; 0 if no tried rate reaches the share."""
    share: float
    """Of good answers at `rate`."""
    probes: tuple[tuple[float, float], ...]
    """Every rate that was tried, in order, and its share."""


def find_frontier(share_at: ShareAt, search: Search) -> Frontier:
    """Bisection over the logarithm of the rate; a draw's share need not fall monotonically.

    The rate that is returned keeps `wanted`, and one at most `precision` above it was tried and does not.
    """
    probes: list[tuple[float, float]] = []

    def keeps(rate: float) -> bool:
        probes.append((rate, share_at(rate)))
        return probes[-1][1] >= search.wanted

    low, high = _bracket(keeps, search)
    while low > 0 and high < math.inf and high / low > 1 + search.precision:
        middle = math.sqrt(low * high)
        if keeps(middle):
            low = middle
        else:
            high = middle
    share = dict(probes)[low] if low else 0.0
    return Frontier(low, share, tuple(probes))


def best_of(variants: Mapping[str, ShareAt], search: Search) -> tuple[str, Frontier]:
    """The variant with the highest frontier; the first of equals.

    A variant that does not keep the share just above the best so far costs one probe. Raises ValueError if
    there are no variants.
    """
    best: tuple[str, Frontier] | None = None
    for name, share_at in variants.items():
        if best is None:
            best = name, find_frontier(share_at, search)
            continue
        above = max(best[1].rate * (1 + search.precision), search.lowest)
        if above <= search.highest and share_at(above) >= search.wanted:
            own = Search(above, search.wanted, search.precision, search.stride, search.lowest, search.highest)
            found = find_frontier(share_at, own)
            best = max(best, (name, found), key=lambda variant: variant[1].rate)
    if best is None:
        raise ValueError("no variant to search")
    return best


def _bracket(keeps: Callable[[float], bool], search: Search) -> tuple[float, float]:
    """A rate that reaches the share, and a higher one that does not; 0 and infinity if there is none."""
    rate = search.start
    if keeps(rate):
        while rate < search.highest:
            higher = min(rate * search.stride, search.highest)
            if not keeps(higher):
                return rate, higher
            rate = higher
        return rate, math.inf
    while rate > search.lowest:
        lower = max(rate / search.stride, search.lowest)
        if keeps(lower):
            return lower, rate
        rate = lower
    return 0.0, rate
