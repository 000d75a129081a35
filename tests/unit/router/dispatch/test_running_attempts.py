"""RunningAttempts that move off a worker that leaves, as far as time allows."""

from __future__ import annotations

import asyncio
from typing import Any

from router.dispatch.running_attempts import _MAX_CONCURRENT, RunningAttempts


class Stuck:
    """An answer whose target does not answer."""

    tokens_to_reserve = 10
    adapter = b""
    weights = ""
    progress: Any = None

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self.moves = 0

    async def migrate(self, session: Any, timeout_s: float, reason: str = "") -> bool:
        self.moves += 1
        await asyncio.sleep(timeout_s + 0.01)
        return False


class Worker:
    worker_id = "a"


async def test_many_answers_that_cannot_move_hold_a_drain_up_no_longer_than_one() -> None:
    target: Any = Worker()
    answers = RunningAttempts(lambda tokens, leaving, adapter, weights: target)
    running = [Stuck(Worker()) for _ in range(3 * _MAX_CONCURRENT)]
    for answer in running:
        answers._running[answer] = None
    assert await answers.migrate_from("a", 0.05) == 0
    assert sum(answer.moves for answer in running) == _MAX_CONCURRENT
