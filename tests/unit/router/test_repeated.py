"""What fails again and again is logged once, until it has succeeded."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router.repeated import repeat


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
    async with asyncio.timeout(5):
        await done.wait()
    repeating.cancel()
    assert [record.message for record in caplog.records] == [
        "it cannot: lost",
        "it cannot: late",
        "it cannot: late",
    ]
