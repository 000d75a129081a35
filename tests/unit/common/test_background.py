"""What fails again and again is logged once, until it has succeeded; a task that fails is logged at once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from common.background import repeat, supervised


async def test_an_error_that_repeats_is_logged_once_and_again_after_a_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = iter(["lost", "lost", "late", None, "late", None])
    done = asyncio.Event()

    async def look() -> None:
        result = next(results, "over")
        if result == "over":
            done.set()
            await asyncio.Event().wait()
        if result is not None:
            raise TimeoutError(result)

    repeating = asyncio.create_task(repeat(look, 0.0, logging.getLogger("test"), "it cannot"))
    async with asyncio.timeout(30):
        await done.wait()
    repeating.cancel()
    assert [record.message for record in caplog.records] == [
        "it cannot: lost",
        "it cannot: late",
        "it cannot: late",
    ]


async def test_a_task_that_fails_is_logged_with_its_name_and_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        raise KeyError("decode-0")

    await asyncio.wait([supervised(work(), "retire decode-0")])
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "retire decode-0" in record.message
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


async def test_a_task_that_is_cancelled_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    task = supervised(asyncio.sleep(60), "sleep")
    task.cancel()
    await asyncio.wait([task])
    assert not caplog.records


async def test_repeating_ends_when_it_is_done_but_not_after_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = [KeyError(), TimeoutError(), None]

    async def look() -> None:
        if (error := results.pop(0)) is not None:
            raise error

    await repeat(look, 0.0, logging.getLogger("test"), "it cannot", until=lambda: True)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "it cannot: KeyError()",
        "it cannot: TimeoutError()",
    ]


async def test_a_final_error_is_raised() -> None:
    async def look() -> None:
        raise KeyError("decode-0")

    with pytest.raises(KeyError):
        await repeat(look, 0.0, logging.getLogger("test"), "it cannot", final=(KeyError,))
