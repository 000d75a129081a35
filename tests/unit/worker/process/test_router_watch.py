"""A worker without a router ends itself after a bounded time."""

from __future__ import annotations

import asyncio

from worker.process.router_watch import RouterWatch

SOON_S = 0.01
PATIENCE_S = 5.0


async def timed_out(watch: RouterWatch, gone: asyncio.Future[str]) -> str:
    async with asyncio.timeout(PATIENCE_S):
        return await gone


def watched() -> tuple[RouterWatch, asyncio.Future[str]]:
    gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return RouterWatch(SOON_S, gone.set_result), gone


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
