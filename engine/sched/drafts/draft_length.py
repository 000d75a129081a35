"""How many tokens to draft: as many as raise the tokens per second of all decodes; none where drafts lose.

A drafted token is one row more in a step. On a GPU with few requests a row costs next to nothing, since the
step's time is that of reading the weights; in a large batch, which is bound by arithmetic, it costs as much
as a decode. So times are measured: a step drafts if its tokens grow by a larger share than its time.

Both sides of that are estimates. So what drafts gained and lost is added up, in steps without drafts: while
they have lost more than `_ALLOWED` of all steps, nothing is drafted. What they may lose is spent on trials,
steps whose drafts are not expected to be worth their time: only these show when that has changed.
"""

from __future__ import annotations

import math
from typing import Final

from engine.sched.chunk_size.step_targets import longest_step_s
from engine.sched.drafts.verify_costs import StepGroup, VerifyCosts

_LEAST: Final = 0.05
"""Probability below which a token is never drafted."""
_GROWTH: Final = 4
"""Drafted tokens of a step relative to those of the largest one before: how fast more of them are tried."""
_FIRST_SHARE: Final = 0.25
"""Drafted tokens of a level's first such step, relative to its decodes."""
_FIRST: Final = 4
"""The least that this may be."""
_MARGIN: Final = 0.02
"""Share of a step's time by which drafts must be expected to be worth more than they cost."""
_ALLOWED: Final = 0.01
"""Share of all steps that drafts may cost."""
_START: Final = 1.0
"""Steps that they may cost at first."""
_MOST: Final = 4.0
"""Steps that they may cost after steps in which they gained time."""
_RISK: Final = 1.0
"""Steps that drafts which are expected to be worth their time may cost on top of that."""
_COMPARE_AFTER: Final = 8
"""Steps with drafts after which a new level is measured without."""
_COMPARE_EVERY: Final = 64
"""The same for a level that was, where drafts gain little; with the square of the gain more seldom."""
_COMPARE_FOR: Final = 4
"""Steps of that measurement, the first and the last of which are beside steps with drafts."""


class DraftLength:
    """Decides for each step of R decodes. All times are of steps without prompts, from end to end."""

    def __init__(self, step_target_s: float | None = None) -> None:
        """`step_target_s`: longest time between two steps, unless decodes alone take most of it; None: no
        target."""
        self._target_s = math.inf if step_target_s is None else step_target_s
        self.costs = VerifyCosts()
        self._credit = _START
        """Steps that drafts may still cost."""
        self._plain_left = _COMPARE_FOR
        """Steps without drafts that are still due."""

    def observe(self, decodes: int, drafted: int, accepted: int, seconds: float) -> None:
        """A step with these decodes and no prompts took `seconds` since the one before it."""
        if not drafted:
            self._credit = min(self._credit + _ALLOWED, _MOST)
        for step in self.costs.observe(decodes, drafted, accepted, seconds):
            gained = step.accepted / step.decodes - step.extra / step.level.seconds
            self._credit = min(max(self._credit + gained, -_MOST), _MOST)

    def interrupted(self) -> None:
        """A step with prompts ran, which says nothing about drafts."""
        self.costs.interrupted()

    def room(self, decodes: int, limit: int) -> int:
        """Most drafted tokens of a step with this many decodes, of at most `limit` rows in all."""
        level = self.costs.level(decodes)
        if not level.seconds or self._credit <= 0:
            return 0
        room = min(limit - decodes, max(_GROWTH * level.largest, self.trial(decodes)))
        longest_s = longest_step_s(self._target_s, level.seconds)
        while room > 0 and level.seconds + (level.cost(room, asked=False) or 0.0) > longest_s:
            room //= 2
        return max(room, 0)

    def trial(self, decodes: int) -> int:
        """Drafted tokens of a trial: a step whose drafts are not expected to be worth their time."""
        return max(_FIRST, int(_FIRST_SHARE * decodes))

    def least_probability(self, decodes: int) -> float:
        """Least acceptance probability of a draft at which one more row raises tokens per second."""
        level = self.costs.level(decodes)
        if not level.seconds:
            return _LEAST
        a_row = level.slope(asked=False) * decodes / level.seconds
        return max(_LEAST, a_row * max(level.gain, 1.0))

    def pays(self, decodes: int, drafted: int, expected: float, *, asked: bool, alone: bool) -> bool:
        """Whether a step with `drafted` tokens, `expected` of them right on average, is worth its time.

        `asked`: a draft model guesses, which takes time of its own. `alone`: without prompts, so that the
        step's time will show what it cost; else that must be known.
        """
        level = self.costs.level(decodes)
        cost = level.cost(drafted, asked=asked)
        if cost is None:
            return alone and self.affords(decodes, drafted, asked=asked, more=_RISK)
        if not alone:
            cost = level.most(drafted, asked=asked)
        pays = expected / decodes > (1 + _MARGIN) * cost / level.seconds + _MARGIN
        return pays and self.affords(decodes, drafted, asked=asked, more=_RISK)

    def affords(self, decodes: int, drafted: int, *, asked: bool, more: float = 0.0) -> bool:
        """Whether drafts may cost as much as these would if all were wrong; `more`: steps on top of that."""
        level = self.costs.level(decodes)
        return level.most(drafted, asked=asked) <= (self._credit + more) * level.seconds

    def measures_plain(self, decodes: int) -> bool:
        """Whether the next step is one without drafts, to compare with."""
        level = self.costs.level(decodes)
        if not self._plain_left and level.since_plain >= self._interval(level):
            self._plain_left = _COMPARE_FOR
        if self._plain_left:
            self._plain_left -= 1
            return True
        return False

    def _interval(self, level: StepGroup) -> float:
        if not level.is_known:
            return _COMPARE_AFTER
        return _COMPARE_EVERY * max(1.0, level.gain) ** 2
