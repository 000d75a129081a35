"""Signals: the first asks, and whatever is under way is ended in order."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from router.cli.shutdown import Interrupted, Shutdown


@pytest.fixture
async def shutdown() -> Shutdown:
    shutdown = Shutdown()
    shutdown.install()
    return shutdown


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_a_request(shutdown: Shutdown, signal_: signal.Signals) -> None:
    os.kill(os.getpid(), signal_)
    async with asyncio.timeout(5):
        assert await shutdown.unless(asyncio.sleep(60, "slept")) is None


async def test_the_second_signal_of_a_drain_is_told_and_only_the_third_ends_the_process(
    shutdown: Shutdown, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    monkeypatch.setattr("router.cli.shutdown.os._exit", exits.append)
    os.kill(os.getpid(), signal.SIGINT)
    await shutdown.unless(asyncio.sleep(60))
    again = shutdown.again()
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(5):
        await again.wait()
    assert not exits
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(5):
        while not exits:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert exits == [128 + signal.SIGINT]


async def test_work_that_ends_before_a_signal_has_its_result(shutdown: Shutdown) -> None:
    assert await shutdown.unless(asyncio.sleep(0, "slept")) == "slept"


async def test_work_that_is_done_in_time_returns_its_result(shutdown: Shutdown) -> None:
    async def work() -> int:
        return 7

    assert await shutdown.unless_requested(work()) == 7


async def test_work_that_fails_raises_its_own_error(shutdown: Shutdown) -> None:
    async def work() -> int:
        raise KeyError("model")

    with pytest.raises(KeyError):
        await shutdown.unless_requested(work())


async def test_a_signal_cancels_the_work_and_lets_it_clean_up(shutdown: Shutdown) -> None:
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(60)
        finally:
            cleaned = True

    with pytest.raises(Interrupted):
        await shutdown.unless_requested(work())
    assert cleaned
