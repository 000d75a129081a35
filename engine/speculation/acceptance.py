"""How often a drafter was right, recently."""

from __future__ import annotations

from typing import Final

_PRIOR_WEIGHT: Final = 2.0
"""Drafted tokens that the prior counts for."""
_FORGET: Final = 0.97
"""Weight of all that was seen, for each step in which nothing was drafted: the estimate returns to its prior,
so that a drafter which was wrong is tried again."""


class Acceptance:
    """Estimates the probability that a drafted token is accepted, if all before it were.

    What a request's drafts show is known to the next request too: the prior of its estimate is that of its
    tenant, whose prior is that of all requests.
    """

    __slots__ = ("_memory", "_no", "_prior", "_yes")

    def __init__(self, prior: Acceptance | float, memory: float = 0.9) -> None:
        """`memory`: weight of a draft relative to the next one."""
        self._prior = prior
        self._memory = memory
        self._yes = self._no = 0.0

    @property
    def probability(self) -> float:
        prior = self._prior
        yes = self._yes + _PRIOR_WEIGHT * (prior if isinstance(prior, float) else prior.probability)
        return yes / (self._yes + self._no + _PRIOR_WEIGHT)

    def record(self, drafted: int, accepted: int) -> None:
        """Tokens after the first wrong one say nothing."""
        wrong, level = accepted < drafted, self
        while True:
            level._yes = level._memory * level._yes + accepted
            level._no = level._memory * level._no + wrong
            prior = level._prior
            if isinstance(prior, float):
                return
            level = prior

    def rest(self) -> None:
        """A step without a draft."""
        self._yes *= _FORGET
        self._no *= _FORGET
