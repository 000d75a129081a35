"""The load of a plan: drawn from length distributions and a rate, or read from a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.lengths import Lengths
from simulator.traffic import Arrival, poisson

_SCREENED = 0.3
"""Part of a load on which all candidates are screened."""


@dataclass(frozen=True, slots=True)
class LoadDraws:
    """Draws of one load; requests that arrive before `since` are served, but not counted."""

    draws: tuple[tuple[Arrival, ...], ...]
    since: float
    until: float
    """When the last request may arrive."""
    shares_prefixes: bool = False

    @property
    def rate(self) -> float:
        """Mean rate of the counted requests over the draws, per second."""
        counted = sum(a.at >= self.since for draw in self.draws for a in draw)
        return counted / len(self.draws) / (self.until - self.since)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return max(a.prompt_tokens + a.max_tokens for draw in self.draws for a in draw)

    @property
    def requests(self) -> int:
        return sum(len(draw) for draw in self.draws)

    def shortened(self) -> LoadDraws:
        """The first part of the first draw."""
        until = self.since + _SCREENED * (self.until - self.since)
        first = tuple(a for a in self.draws[0] if a.at <= until)
        counted = any(a.at >= self.since for a in first)
        return LoadDraws((first,), self.since, until, self.shares_prefixes) if counted else self


def drawn(
    inputs: Lengths, outputs: Lengths, rate: float, *, seconds: float, warm_up: float, seeds: Sequence[int]
) -> LoadDraws:
    """Poisson arrivals of `seconds` after those of a warm-up at the same rate."""
    total = warm_up + seconds
    draws = tuple(
        tuple(a for a in poisson(rate, 1.2 * total + 30 / rate, inputs, outputs, seed) if a.at <= total)
        for seed in seeds
    )
    return LoadDraws(draws, warm_up, total)


def of_trace(arrivals: Sequence[Arrival]) -> LoadDraws:
    """All requests of a trace, which begins at its first one. Raises ValueError for fewer than two."""
    if len(arrivals) < 2:
        raise ValueError("a trace needs two requests at least")
    first, last = arrivals[0].at, arrivals[-1].at
    if last <= first:
        raise ValueError("all requests of the trace arrive at the same time")
    moved = tuple(Arrival(a.at - first, a.prompt_tokens, a.max_tokens, a.blocks) for a in arrivals)
    return LoadDraws((moved,), 0.0, last - first, any(a.blocks for a in arrivals))
