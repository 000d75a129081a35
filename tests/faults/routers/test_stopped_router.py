"""A router hangs and goes on: its workers have given it up, which is no fault of theirs or its requests."""

from __future__ import annotations

import asyncio
import signal
import time

import httpx
import pytest

from rpc.session import LEASE_S
from tests.faults.support.clients import HttpClient
from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

HANGS = 4
"""More than --max-attempts, and than a request that crashes workers may."""
HANG_S = LEASE_S + 2.5
"""Until every worker has ended the router's session."""
STREAMS = 3


async def hang(service: Service) -> None:
    written = len(service.running.text())
    service.running.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(HANG_S)
    finally:
        service.running.process.send_signal(signal.SIGCONT)
    await service.says(r"lost decode-\d", written, within_s=10.0)
    await service.all_workers_up()


@pytest.mark.parametrize("progress", [False, True], ids=["at-once", "between-tokens"])
async def test_a_router_that_hangs_again_and_again_fails_and_blames_no_request(
    service: Service, answers: Answers, progress: bool
) -> None:
    written = len(service.running.text())
    async with Load([HttpClient(service.url) for _ in range(STREAMS)], answers) as load:
        await load.everybody_streams()
        for _ in range(HANGS):
            await hang(service)
            if progress:
                await load.everybody_streams(since=time.monotonic())
        load.stop()
    assert not load.refusals
    said = service.running.text()[written:]
    assert "crashed" not in said
    assert "0 attempts left" not in said
    async with httpx.AsyncClient(timeout=60) as client:
        body = {"prompt": answers.questions[0].prompt, "max_tokens": 4}
        assert (await client.post(f"{service.url}/v1/completions", json=body)).status_code == 200
    await service.all_pages_back()
