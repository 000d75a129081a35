"""Moves running answers from overloaded workers to others, while a router serves."""

from __future__ import annotations

import asyncio
from typing import Final

from router.dispatch.evacuation import Answers
from router.dispatch.routing.adaptive import AdaptivePlacing

__all__ = ["relieve"]

_REVIEW_S: Final = 0.5
_MOVE_S: Final = 5.0
"""An answer that is not at its target by then stays where it is."""


async def relieve(placing: AdaptivePlacing, answers: Answers, every_s: float = _REVIEW_S) -> None:
    """Looks every `every_s`, until it is cancelled, whether an answer should move, and moves it."""
    while True:
        await asyncio.sleep(every_s)
        relief = placing.relief(answers.now())
        if relief is not None:
            await relief.answer.move(relief.target, _MOVE_S, relief.reason)
