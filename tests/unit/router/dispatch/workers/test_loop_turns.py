"""How long turns of the router's event loop take."""

from __future__ import annotations

import asyncio
import time

from router.dispatch.workers.loop_turns import LoopTurns, TimedLoop, busy_since


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def turns() -> tuple[LoopTurns, Clock]:
    clock = Clock()
    return LoopTurns(clock), clock


def test_a_long_turn_is_known_after_its_end() -> None:
    loop, clock = turns()
    loop.woken(due=11.0)
    clock.now += 0.25
    loop.waits()
    clock.now += 3.0
    loop.woken(due=14.0)
    assert loop.longest_since(10.0) == 0.25
    assert loop.longest_since(11.0) == 0.0


def test_the_current_turn_counts() -> None:
    loop, clock = turns()
    loop.woken(due=11.0)
    clock.now += 0.5
    assert loop.longest_since(10.0) == 0.5


def test_a_loop_that_is_not_woken_in_time_was_stopped() -> None:
    loop, clock = turns()
    loop.waits()
    clock.now += 2.0
    loop.woken(due=11.0)
    assert loop.longest_since(10.0) == 1.0
    loop.waits()
    clock.now += 2.0
    loop.woken(due=float("inf"))
    assert loop.longest_since(13.0) == 0.0, "no timer was due"


def test_a_callback_that_blocks_the_loop_is_seen_by_the_next_one() -> None:
    async def blocked() -> float:
        began = time.monotonic()
        asyncio.get_running_loop().call_soon(time.sleep, 0.2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return busy_since(began)

    with asyncio.Runner(loop_factory=TimedLoop) as runner:
        assert runner.run(blocked()) >= 0.2
    assert asyncio.run(blocked()) == 0.0, "a loop of another kind does not say"
