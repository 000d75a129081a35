"""A worker hangs instead of dying: its process is stopped, and goes on long after everybody gave it up."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.faults.support.bounds import bounded
from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

CLIENTS = 8
DETECTED_S = 4.5
"""--worker-timeout and --worker-grace; some of it is the test's own polling."""


@bounded("rounds", here=1, soak=30)
@pytest.mark.parametrize("role", ["decode", "prefill"])
async def test_late_writes_of_a_stopped_worker_corrupt_no_request(
    service: Service, answers: Answers, role: str, rounds: int
) -> None:
    draw = random.Random(rounds)
    for round_ in range(rounds):
        async with Load(service.clients(CLIENTS), answers) as load:
            await load.everybody_streams()
            await asyncio.sleep(draw.uniform(0.0, 1.0))
            written = len(service.running.text())
            victim = draw.choice(service.workers(role))
            victim.suspend()
            stopped_at = time.monotonic()
            try:
                detected_s = await service.says(rf"lost {role}-\d", written, within_s=10.0)
                if role == "decode":
                    await load.everybody_streams(since=stopped_at + detected_s)
                await asyncio.sleep(draw.uniform(0.0, 3.0))
            finally:
                victim.resume()
            resumed_at = time.monotonic()
            await load.everybody_streams(since=resumed_at)
            back_s = await service.all_workers_up()
        await service.all_pages_back()
        print(
            f"\n{role} stopped, round {round_}: detected in {detected_s:.2f} s, streams stood still for "
            f"{load.interruption(stopped_at):.2f} s, in service again {back_s:.1f} s after SIGCONT; "
            f"{len(load.stories)} answers, {len(load.refusals)} refused",
            end="",
        )
        if rounds > 1:  # a figure of many rounds, on a machine that has nothing else to do
            assert detected_s < DETECTED_S
