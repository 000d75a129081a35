"""How often a drafter was right, recently."""

from __future__ import annotations

from typing import Final

__all__ = ["Acceptance"]

_MEMORY: Final = 0.9
"""Weight of a draft relative to the next one."""
_PRIOR_WEIGHT: Final = 2.0
"""Drafted tokens that the prior counts for."""
_FORGET: Final = 0.97
"""Weight of all that was seen, for each step in which nothing was drafted: the estimate returns to its prior,
so that a drafter which was wrong is tried again."""


class Acceptance:
    """Estimates the probability that a drafted token is accepted, if all before it were."""

    __slots__ = ("_no", "_prior", "_yes")

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._yes = self._no = 0.0

    @property
    def probability(self) -> float:
        yes = self._yes + _PRIOR_WEIGHT * self._prior
        return yes / (self._yes + self._no + _PRIOR_WEIGHT)

    def record(self, drafted: int, accepted: int) -> None:
        """Tokens behind the first wrong one say nothing."""
        self._yes = _MEMORY * self._yes + accepted
        self._no = _MEMORY * self._no + (accepted < drafted)

    def rest(self) -> None:
        """A step without a draft."""
        self._yes *= _FORGET
        self._no *= _FORGET
