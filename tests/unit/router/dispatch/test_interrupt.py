from __future__ import annotations

import asyncio

import pytest

from router.dispatch.token_stream import Interrupt


class Stopped(Exception):
    pass


async def test_a_wait_gives_what_it_waited_for() -> None:
    assert await Interrupt().wait(asyncio.sleep(0, "done")) == "done"


async def test_triggering_ends_a_wait_with_the_error() -> None:
    interrupt = Interrupt()
    asyncio.get_running_loop().call_soon(interrupt.trigger, Stopped())
    with pytest.raises(Stopped):
        await interrupt.wait(asyncio.Event().wait())
    await asyncio.sleep(0)  # the task is not cancelled


async def test_what_was_waited_for_is_cancelled() -> None:
    interrupt = Interrupt()
    waited_for = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(interrupt.trigger, Stopped())
    with pytest.raises(Stopped):
        await interrupt.wait(waited_for)
    assert waited_for.cancelled()


async def test_triggered_between_two_waits_it_ends_the_next_and_the_first_error_counts() -> None:
    interrupt = Interrupt()
    interrupt.trigger(Stopped("first"))
    interrupt.trigger(Stopped("second"))
    future = asyncio.get_running_loop().create_future()
    with pytest.raises(Stopped, match="first"):
        await interrupt.wait(future)


async def test_a_cancellation_by_another_task_is_not_swallowed() -> None:
    interrupt = Interrupt()
    task = asyncio.create_task(interrupt.wait(asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_and_triggered_at_once_the_cancellation_wins() -> None:
    interrupt = Interrupt()
    task = asyncio.create_task(interrupt.wait(asyncio.Event().wait()))
    await asyncio.sleep(0)
    interrupt.trigger(Stopped())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
