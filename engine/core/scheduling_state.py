"""What the scheduler keeps of a request, from its submission on."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.waits import WaitMark


@dataclass(slots=True)
class SchedulingState:
    number: int = 0
    """Counts submissions to one scheduler."""
    tokens_before: int = 0
    """Prompt tokens that had been admitted when the request was submitted."""
    wait_mark: WaitMark = ()
    """Since when it waits."""
    aging: float = 0.0
    """Term of `Request.schedule_key`: grows with every prompt submitted before; -inf once preempted."""
    num_expected: int = 0
    """Prompt tokens that the prefix cache is expected to hold, until the request is admitted."""
    decodes_since: float | None = None
    """When its first token came, by the engine's clock; None before it decodes, or without a TPOT target. Of
    an answer that another worker began: when it would have come if its tokens met the target."""
