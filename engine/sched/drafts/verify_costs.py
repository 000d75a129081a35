"""What drafts cost: by how much a step with drafted tokens lasts longer than one without.

Steps with about the same number of decodes are compared, one class of sizes with itself: `a + b * drafted` is
fitted to the seconds that steps with drafts take beyond those without. `a` is not small on GPUs: a step with
drafts is read before the next one is planned, so the host's time shows; and a draft model takes time, too.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field
from typing import Final

from engine.sched.timing.line_fit import LineFit

_CLASSES: Final = 4
"""Classes of sizes for each doubling of the number of decodes."""
_NEWEST: Final = 0.06
"""Weight of the newest step without drafts in the mean of a level."""
_NEWEST_GAIN: Final = 0.2
"""Weight of the newest step with drafts in the mean of what drafts gain."""
_OUTLIER: Final = 2.0
"""A step counts as at most this many times as long as one like it is expected to be."""
_MEMORY: Final = 0.97
"""Weight of a step with drafts relative to the next one in a fit."""
_MANY: Final = 1e9
"""Where a fit without a slope has its mean."""
_SMALL: Final = 4
"""Decodes of a batch whose rows cost about half of their share in the step's time."""
_ENOUGH: Final = 2
"""Steps without drafts that make a level's own mean."""


@dataclass(slots=True)
class StepGroup:
    """Steps with about the same number of decodes."""

    decodes: float
    seconds: float = 0.0
    """Mean time of a step without drafts."""
    num_plain: int = 0
    """Such steps so far; `seconds` is known from `_ENOUGH` on."""
    since_plain: int = 0
    """Steps with drafts since the last one without."""
    largest: int = 0
    """Most drafted tokens of a step so far."""
    gain: float = 1.0
    """Tokens a second with drafts relative to those without; a mean."""
    extra: dict[bool, LineFit] = field(default_factory=dict)
    """Seconds beyond `seconds` by drafted tokens; apart with and without guesses of a draft model."""

    @property
    def is_known(self) -> bool:
        return self.num_plain >= _ENOUGH

    def plain(self, seconds: float) -> None:
        if self.num_plain:
            self.seconds += max(_NEWEST, 1 / (self.num_plain + 1)) * (
                min(seconds, _OUTLIER * self.seconds) - self.seconds
            )
        else:
            self.seconds = seconds
        self.num_plain += 1
        self.since_plain = 0

    def cost(self, drafted: int, *, asked: bool) -> float | None:
        """Seconds by which `drafted` tokens lengthen a step; None before such a step was measured."""
        fit = self.extra.get(asked)
        if fit is None:
            return None
        # Without a slope, fewer tokens may cost as much as those that were measured.
        return fit.at(drafted if fit.slope else _MANY)

    def most(self, drafted: int, *, asked: bool) -> float:
        """Upper bound of `cost`. Before a measurement a drafted token counts as one decode more; in small
        batches as less, since a step's time there is that of reading the weights."""
        fit = self.extra.get(asked)
        if fit is None:
            return drafted * self.seconds / (self.decodes + _SMALL)
        return fit.at(drafted) if fit.slope else fit.at(_MANY) * max(1.0, drafted / max(self.largest, 1))

    def slope(self, *, asked: bool) -> float:
        """Seconds of one drafted token more; 0 where it is not known."""
        fit = self.extra.get(asked)
        return 0.0 if fit is None else fit.slope


@dataclass(slots=True)
class Verifying:
    """A step with drafts."""

    level: StepGroup
    decodes: int
    drafted: int
    accepted: int
    extra: float
    """Seconds beyond a step without drafts."""
    asked: bool
    """A draft model was."""


class VerifyCosts:
    """Cost of drafts, from the times of steps without prompts, each from the end of one step to the next.

    Steps adjacent to one with drafts are left out of the baseline, and their extra time is charged to the
    drafts: with overlapped steps the draft model runs in the time of the step before, and the host plans in
    that of the step after.
    """

    def __init__(self) -> None:
        self._levels: dict[int, StepGroup] = {}
        self._next_drafts = self._next_asked = False
        """The step planned last has drafts; those of a draft model."""
        self._before = 0.0
        """Seconds that the step before the next one with drafts took too long."""
        self._open: Verifying | None = None
        """The last step with drafts, until the time of the step after it is known."""
        self._untimed = True
        """The last step was not timed."""

    def planned(self, *, drafts: bool, asked: bool) -> None:
        """A step with decodes was planned."""
        self._next_drafts, self._next_asked = drafts, asked

    def level(self, decodes: int) -> StepGroup:
        """What is known of such steps; before they were timed, from steps with more decodes or fewer."""
        found = self._levels.get(_class_of(decodes))
        if found is None:
            found = self._levels[_class_of(decodes)] = self._new_level(decodes)
        if not found.is_known:
            found.seconds = self._guess(decodes) or found.seconds
        return found

    def observe(self, decodes: int, drafted: int, accepted: int, seconds: float) -> list[Verifying]:
        """A step took `seconds` since the one before it. Returns what is now known of steps with drafts."""
        level = self.level(decodes)
        beyond = seconds - level.seconds if level.seconds else 0.0
        known: list[Verifying] = []
        if drafted:
            known += self._close()
            level.since_plain += 1
            level.largest = max(level.largest, drafted)
            extra, asked = beyond + self._before, self._next_asked
            if not self._untimed:
                self._open = Verifying(level, decodes, drafted, accepted, extra, asked)
            self._before, self._next_drafts = 0.0, False
        elif self._open is not None:
            self._open.extra += beyond
            known += self._close()
        elif self._next_drafts:
            self._before = beyond
        elif not self._untimed:
            level.decodes += (decodes - level.decodes) * 0.5
            level.plain(seconds)
        self._untimed = False
        return known

    def interrupted(self) -> None:
        """A step was not timed, since it had prompts. That beside it is not used either."""
        self._before, self._next_drafts, self._untimed, self._open = 0.0, False, True, None

    def _close(self) -> list[Verifying]:
        step, self._open = self._open, None
        if step is None or not step.level.seconds:
            return []
        level, seconds = step.level, step.level.seconds
        # The machine's hiccups are no costs of drafts, which would pay for one in hundreds of steps.
        longest = _OUTLIER * (seconds + level.most(step.drafted, asked=step.asked))
        step.extra = min(step.extra, longest - seconds)
        level.extra.setdefault(step.asked, LineFit(_MEMORY)).observe(step.drafted, step.extra)
        gain = (1 + step.accepted / step.decodes) * seconds / max(seconds + step.extra, 1e-9)
        level.gain += _NEWEST_GAIN * (min(gain, 1.0 + step.drafted) - level.gain)
        return [step]

    def _new_level(self, decodes: int) -> StepGroup:
        """With what is known of drafts in steps with about as many decodes."""
        found = StepGroup(decodes)
        drafted = [level for level in self._levels.values() if level.largest]
        if drafted:
            near = min(drafted, key=lambda level: abs(math.log(level.decodes / decodes)))
            found.largest, found.gain = near.largest, near.gain
            found.extra = {asked: copy(fit) for asked, fit in near.extra.items()}
        return found

    def _guess(self, decodes: int) -> float:
        """Seconds of a step without drafts, from those of the next sizes on both sides; 0: none is known."""
        known = [level for level in self._levels.values() if level.is_known]
        below = max((lv for lv in known if lv.decodes <= decodes), key=lambda lv: lv.decodes, default=None)
        above = min((lv for lv in known if lv.decodes > decodes), key=lambda lv: lv.decodes, default=None)
        if below is None or above is None:
            only = below or above
            return 0.0 if only is None else only.seconds * math.sqrt(decodes / only.decodes)
        share = (decodes - below.decodes) / (above.decodes - below.decodes)
        return below.seconds + share * (above.seconds - below.seconds)


def _class_of(decodes: int) -> int:
    return round(_CLASSES * math.log2(decodes))
