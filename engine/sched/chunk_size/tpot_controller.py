"""Spaces the steps with prompts so that the mean time between an answer's tokens (TPOT) meets a target."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from engine.config import STEP_SHARE
from engine.core.request import Request
from engine.sched.chunk_size.step_targets import spaced_steps_s
from engine.sched.output_lengths import OutputLengths, produced_tokens

_SMALLEST: Final = 64
"""Smallest budget of a step with prompts, so that they make progress."""
_AT_ONCE: Final = 0.5
"""Share of the slack that a step may take: the one after it is planned before this one is measured."""
_MEAN_WEIGHT: Final = 0.005
"""Weight of the newest step in the mean time of a step, which covers a few hundred: an answer's length."""
_PLAIN_WEIGHT: Final = 0.3
"""Weight of the newest step in the time of a step without prompts, which changes with the decodes."""
_DAMPING: Final = 0.5
"""Weight of the newest step with prompts in the time of a prompt token."""
_DECODES_SINCE: Final = attrgetter("scheduling.decodes_since")


class TPOTController:
    """Decides when a step may carry prompts beside decodes, and how many tokens.

    TPOT is a mean over the steps of an answer. A step with prompts has a fixed cost, so a few long ones
    compute more prompt tokens than many short ones with the same mean. A step with prompts takes `pause_s`,
    the pause that readers see. Either of two rules allows it:

    * **Debt.** What steps take beyond the held mean is debt, which later ones repay by being shorter. Without
      debt, a step may carry prompts. With prompts pending all the time the mean stays at `held_s`, whatever
      prompts and decodes cost.
    * **Slack.** An answer may use the time that it has saved so far, and what it will save if steps stay as
      long as the mean is now. The answer with the least slack decides. When few steps carry prompts, much is
      saved, and prompts are computed in consecutive steps; when all do, nothing is, and debt alone decides.
      Lending time between the requests of a worker follows TaiChi (arXiv 2508.01989).

    Where decodes alone are slower than the held mean, debt is counted from a mean that follows them
    (`spaced_steps_s`).
    """

    def __init__(self, target_s: float, pause_s: float, largest: int, lengths: OutputLengths) -> None:
        """`pause_s`: time of a step with prompts. `largest`: most prompt tokens of a step. `lengths`: of the
        answers that have ended.
        """
        self.target_s = target_s
        self.pause_s = pause_s
        self.held_s = STEP_SHARE * target_s
        self._largest = largest
        self._lengths = lengths
        self._mean_s = self.held_s
        self._plain_s = 0.0
        self._token_s = self.held_s / min(512, largest)
        self._debt_s = 0.0
        self._budget = self.usual_budget

    @property
    def budget(self) -> int:
        """Largest cost of the prompt tokens of the step that is planned now; 0: none beside decodes."""
        return self._budget

    @property
    def usual_budget(self) -> int:
        """`budget` of a step that may carry prompts."""
        _, pause_s = self._allowed()
        return int(min(max((pause_s - self._plain_s) / self._token_s, _SMALLEST), self._largest))

    def plan(self, decodes: Sequence[Request], now: float, *, prompts: bool) -> None:
        """Set `budget` for a step with these decodes. `prompts`: it may compute some, so `budget` is used.

        Must be called for every step, since it notes when a request begins to decode. O(decodes).
        """
        for request in decodes:
            if request.scheduling.decodes_since is None:
                # What it has of its answer by now was as fast as it should be.
                request.scheduling.decodes_since = now - self.held_s * (len(request.output) - 1)
        if not prompts or not decodes:
            return
        _, pause_s = self._allowed()
        allowed = self._debt_s <= 0 or self._mean_s + _AT_ONCE * self._slack(decodes, now) >= pause_s
        self._budget = self.usual_budget if allowed else 0

    def observe(self, cost: float, seconds: float) -> None:
        """A step with decodes, and prompt tokens of this cost or 0, took `seconds` since the last one."""
        self._mean_s += _MEAN_WEIGHT * (seconds - self._mean_s)
        mean_s, _ = self._allowed()
        over = seconds - mean_s
        if not cost:
            over = min(over, self.held_s - self.target_s)  # repays something, so that prompts make progress
        self._debt_s = max(0.0, self._debt_s + over)
        if not cost:
            self._plain_s += _PLAIN_WEIGHT * (seconds - self._plain_s)
        elif cost >= _SMALLEST:
            token_s = max(seconds - self._plain_s, 0.1 * seconds) / cost
            token_s = min(max(token_s, self._token_s / 2), self._token_s * 2)
            self._token_s += _DAMPING * (token_s - self._token_s)

    def _allowed(self) -> tuple[float, float]:
        """Mean of steps, and time of one with prompts, beside decodes as slow as they are."""
        return spaced_steps_s(self.held_s, self.pause_s, self._plain_s)

    def _slack(self, decodes: Sequence[Request], now: float) -> float:
        """Seconds that the answer with the least can lose and still have the held mean at its end."""
        elapsed = now - np.fromiter(map(_DECODES_SINCE, decodes), np.float64, len(decodes))
        produced = produced_tokens(decodes)
        remaining = self._lengths.remaining_after(produced, decodes)
        allowed = self.held_s * (produced - 1 + remaining)
        slack = allowed - elapsed - min(self._mean_s, self.held_s) * remaining
        return float(slack.min())
