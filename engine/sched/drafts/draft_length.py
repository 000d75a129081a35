"""How many tokens to draft: as many as raise the tokens per second of all decodes.

A drafted token is one row more in a step. On a GPU with few requests a row costs next to nothing, since the
step's time is that of reading the weights; in a large batch, which is bound by arithmetic, it costs as much
as a decode. So times are measured: a draft is worth its row if it adds a larger share of tokens than of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from engine.sched.timing.line_fit import LineFit

__all__ = ["DraftLength"]

_MEMORY: Final = 0.97
"""Weight of a step relative to the next one in the fit."""
_NEWEST: Final = 0.2
"""Weight of the newest step in the mean of a kind of step."""
_LEAST: Final = 0.05
"""Probability below which a token is never drafted."""
_GROWTH: Final = 2
"""Rows of a step relative to those of the largest one before: how fast unknown sizes are tried."""
_FEWEST: Final = 8
"""Rows that are always tried."""
_COMPARE_EVERY: Final = 64
"""Steps of one kind, with or without drafts, after which the other is measured again."""
_COMPARE_FOR: Final = 4
"""Steps of that measurement."""
_SIMILAR: Final = 1.5
"""A mean holds for up to this many times as many decodes, or as few."""


@dataclass(slots=True)
class _Mean:
    """Steps with drafts, or without."""

    decodes: float = 0.0
    tokens: float = 0.0
    """Per decode: 1, and accepted drafts."""
    seconds: float = 0.0

    def observe(self, decodes: int, tokens: float, seconds: float) -> None:
        if not self.holds_for(decodes):
            self.decodes, self.tokens, self.seconds = decodes, tokens, seconds
        self.decodes += _NEWEST * (decodes - self.decodes)
        self.tokens += _NEWEST * (tokens - self.tokens)
        self.seconds += _NEWEST * (seconds - self.seconds)

    def holds_for(self, decodes: int) -> bool:
        return self.decodes / _SIMILAR <= decodes <= self.decodes * _SIMILAR


class DraftLength:
    """Decides for each step of R decodes. All times are of steps without prompts, from end to end."""

    def __init__(self, step_target_s: float | None = None) -> None:
        """`step_target_s`: longest time between two steps; None: no target."""
        self._target_s = math.inf if step_target_s is None else step_target_s
        self._times = LineFit(_MEMORY)
        """By rows."""
        self._plain, self._drafted = _Mean(), _Mean()
        self._largest = 0
        self._since_compared = 0

    def observe(self, decodes: int, drafted: int, accepted: int, seconds: float) -> None:
        """A step with these decodes and no prompts took `seconds` since the one before it."""
        self._times.observe(decodes + drafted, seconds)
        self._largest = max(self._largest, decodes + drafted)
        mean = self._drafted if drafted else self._plain
        mean.observe(decodes, 1 + accepted / decodes, seconds)

    def room(self, decodes: int, limit: int) -> int:
        """Most drafted tokens of a step with this many decodes, of at most `limit` rows in all.

        0: drafts would lower the tokens per second, or the step would exceed its target.
        """
        room = min(limit, max(_GROWTH * max(self._largest, decodes), _FEWEST)) - decodes
        while room > 0 and self._times.at(decodes + room) > self._target_s:
            room //= 2
        return room if room > 0 and self._pays(decodes) else 0

    def least_probability(self, decodes: int) -> float:
        """Of a draft's being right, from which one row more raises the tokens per second."""
        drafted = self._drafted
        if not drafted.holds_for(decodes):
            return _LEAST
        return max(_LEAST, drafted.tokens * decodes * self._times.slope / max(drafted.seconds, 1e-9))

    def _pays(self, decodes: int) -> bool:
        """Whether steps with drafts bring more tokens a second; else only to measure it."""
        plain, drafted = self._plain, self._drafted
        if not drafted.holds_for(decodes):
            return True
        if not plain.holds_for(decodes):
            pays, self._since_compared = False, 0  # measured within the next steps
            return pays
        pays = drafted.tokens / drafted.seconds > 1 / plain.seconds
        self._since_compared = (self._since_compared + 1) % _COMPARE_EVERY
        return pays is not (self._since_compared < _COMPARE_FOR)
