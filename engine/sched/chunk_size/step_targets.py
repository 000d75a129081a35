"""What a target for the time of steps becomes where decodes alone take most of it, or more.

No chunk meets a target that decodes alone exceed, and one that they nearly fill leaves few tokens to
prompts. Then the time that prompts may add follows the decodes: half as much as they take. Schedulers size
chunks by these functions, and placement predicts with them.
"""

from __future__ import annotations

from typing import Final

_SLOWEST: Final = 1.5
"""Time of steps with prompts relative to steps without, beyond the target. Simulated for a 70B model that
decodes in 27 ms: 1.25 has 2 to 7 times the TTFT p99, 2 a third more ITL p99."""


def longest_step_s(target_s: float, plain_s: float) -> float:
    """Seconds that a step with prompts may take beside decodes that take `plain_s` without."""
    return max(target_s, _SLOWEST * plain_s)


def spaced_steps_s(mean_s: float, pause_s: float, plain_s: float) -> tuple[float, float]:
    """Mean time of all steps, and time of one with prompts, where steps with prompts are spaced.

    Both targets stand while decodes alone meet the mean: prompts still progress, in fewer steps. Beyond that,
    every second step may contain prompts.
    """
    if plain_s < mean_s:
        return mean_s, pause_s
    return _SLOWEST * plain_s, max(pause_s, (2 * _SLOWEST - 1) * plain_s)
