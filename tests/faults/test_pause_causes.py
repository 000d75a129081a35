"""A pause that a process of the service makes is counted with that process as its cause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import psutil
import pytest

from tests.faults.support.joined import worker_pids
from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service

pytestmark = [pytest.mark.timeout(300), pytest.mark.alone]

_STOP_S = 0.6
"""Shorter than --worker-timeout: no worker is given up."""
_LONGEST_S = _STOP_S / 2
_ATTEMPTS = 5
"""The answers of a process may all end just before it is stopped."""


async def pause_while_stopped(
    service: Service, answers: Answers, choose: Callable[[], Awaitable[psutil.Process]], causes: set[str]
) -> dict[str, Any]:
    """The pause with one of `causes` that stopping a process makes.

    `choose` is called under load, just before. Raises AssertionError if no attempt makes such a pause.
    """
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as http:

        async def pauses() -> list[dict[str, Any]]:
            return list((await http.get("/status")).json()["pauses"])

        seen: list[dict[str, Any]] = []
        for _ in range(_ATTEMPTS):
            before = max((pause["number"] for pause in await pauses()), default=0)
            async with Load(service.clients(4), answers) as load:
                await load.everybody_streams()
                process = await choose()
                process.suspend()
                try:
                    await asyncio.sleep(_STOP_S)
                finally:
                    process.resume()
            seen = [pause for pause in await pauses() if pause["number"] > before]
            for pause in seen:
                if pause["cause"] in causes and pause["seconds"] > _LONGEST_S:
                    return pause
        raise AssertionError(f"{_ATTEMPTS} attempts, none of {causes}; pauses of the last one: {seen}")


async def test_a_stopped_worker(service: Service, answers: Answers) -> None:
    """Where it is stopped after a step, its event loop writes the tokens late."""
    pids = await worker_pids(service)

    async def busiest() -> psutil.Process:
        return psutil.Process(pids[await service.busiest_decode_worker()])

    longest = await pause_while_stopped(service, answers, busiest, {"stopped", "send"})
    assert longest["cause"] == "send" or longest["parts"]["stopped"] > _LONGEST_S


async def test_a_stopped_router(service: Service, answers: Answers) -> None:
    async def router() -> psutil.Process:
        return service.processes()["router"]

    await pause_while_stopped(service, answers, router, {"router"})
