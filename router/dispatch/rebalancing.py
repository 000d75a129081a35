"""Rebalancing: moves running answers from overloaded workers to others."""

from __future__ import annotations

import asyncio
from typing import Final

from router.dispatch.evacuation import RunningAttempts
from router.dispatch.routing.adaptive import AdaptivePlacing

__all__ = ["rebalance"]

_REVIEW_S: Final = 0.5
_MOVE_S: Final = 5.0
"""Timeout of one move; after it the answer stays at its source."""


async def rebalance(placing: AdaptivePlacing, answers: RunningAttempts, every_s: float = _REVIEW_S) -> None:
    """Every `every_s` seconds, move one answer if placement suggests it. Runs until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        planned = placing.planned_move(answers.now())
        if planned is not None:
            await planned.answer.move(planned.target, _MOVE_S, planned.reason)
