"""A pause that a process of the service makes is counted with that process as its cause."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import psutil
import pytest

from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service

pytestmark = [pytest.mark.timeout(300), pytest.mark.alone]

_STOP_S = 0.6
"""Shorter than --worker-timeout: no worker is given up."""
_ATTEMPTS = 4
"""All streams may be at the other decode worker while this one is stopped."""


async def pauses_while_stopped(
    service: Service, answers: Answers, process: psutil.Process
) -> dict[str, dict[str, Any]]:
    """The longest pause of each cause."""
    async with httpx.AsyncClient(base_url=service.url) as http:

        async def pauses() -> list[dict[str, Any]]:
            return list((await http.get("/status", timeout=30)).json()["pauses"])

        before = max((pause["number"] for pause in await pauses()), default=0)
        async with Load(service.clients(4), answers) as load:
            await load.everybody_streams()
            process.suspend()
            await asyncio.sleep(_STOP_S)
            process.resume()
            await load.everybody_streams()
        found = [pause for pause in await pauses() if pause["number"] > before]
    return {pause["cause"]: pause for pause in sorted(found, key=lambda pause: float(pause["seconds"]))}


async def test_a_stopped_worker(service: Service, answers: Answers) -> None:
    """Where it is stopped after a step, its event loop writes the tokens late."""
    for worker in service.workers("decode"):
        for _ in range(_ATTEMPTS):
            found = await pauses_while_stopped(service, answers, worker)
            if longest := found.get("stopped") or found.get("send"):
                break
        assert longest, found
        assert longest["seconds"] > _STOP_S / 2
        assert longest["cause"] == "send" or longest["parts"]["stopped"] > _STOP_S / 2


async def test_a_stopped_router(service: Service, answers: Answers) -> None:
    router = service.processes()["router"]
    assert (await pauses_while_stopped(service, answers, router))["router"]["seconds"] > _STOP_S / 2
