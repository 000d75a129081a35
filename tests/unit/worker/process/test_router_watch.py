"""A worker without a router ends itself after a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from worker.process.router_watch import RouterWatch

SOON_S = 0.01
PATIENCE_S = 5.0


async def timed_out(watch: RouterWatch, gone: asyncio.Future[str]) -> str:
    async with asyncio.timeout(PATIENCE_S):
        return await gone


def watched(answers: Iterable[bool] = ()) -> tuple[RouterWatch, asyncio.Future[str]]:
    """`answers`: whether Ray answers, by time; afterwards it does not."""
    gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    left = iter(answers)

    async def is_reachable() -> bool:
        return next(left, False)

    return RouterWatch(SOON_S, gone.set_result, is_reachable), gone


async def test_a_worker_without_a_router_waits_for_as_long_as_ray_answers() -> None:
    asked: list[bool] = []

    def answers() -> Iterator[bool]:
        for _ in range(3):
            asked.append(True)
            yield True

    watch, gone = watched(answers())
    watch.start()
    assert "Ray does not answer" in await timed_out(watch, gone)
    assert len(asked) == 3


async def test_a_worker_that_no_router_ever_connected_to_ends() -> None:
    watch, gone = watched()
    watch.start()
    assert "no router" in await timed_out(watch, gone)


async def test_a_worker_ends_after_its_last_session_and_not_before() -> None:
    watch, gone = watched()
    watch.start()
    with watch.session():
        with watch.session():
            pass
        await asyncio.sleep(5 * SOON_S)
        assert not gone.done()
    assert "no router" in await timed_out(watch, gone)


async def test_a_session_that_began_before_the_start_holds_the_timeout_off() -> None:
    watch, gone = watched()
    with watch.session():
        watch.start()
        await asyncio.sleep(5 * SOON_S)
        assert not gone.done()
    assert "no router" in await timed_out(watch, gone)


async def test_a_worker_that_was_stopped_is_not_ended_again() -> None:
    watch, gone = watched()
    with watch.session():
        watch.stop()
    await asyncio.sleep(5 * SOON_S)
    assert not gone.done()
