"""Workers are killed or stopped while running answers move off one of them, under load."""

from __future__ import annotations

import asyncio
import random
import time

import psutil
import pytest

from tests.faults.support.bounds import bounded
from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

CLIENTS = 8
COMMAND_S = 60.0
"""For the operator's command to start and to reach the router."""
MOVES_S = 0.05
"""About as long as the moves take: the faults strike before, during and after them."""


@bounded("rounds", here=1, soak=300)
@pytest.mark.parametrize("fault", ["killed", "stopped"])
async def test_a_worker_that_is_killed_or_stopped_during_moves_costs_time_and_nothing_else(
    service: Service, answers: Answers, fault: str, rounds: int
) -> None:
    draw = random.Random(rounds)
    for round_ in range(rounds):
        async with Load(service.clients(CLIENTS), answers) as load:
            await load.everybody_streams()
            victims = [*service.workers("decode"), *service.workers("prefill")]
            logged, busiest = len(service.running.text()), await service.busiest_decode_worker()
            leaving = asyncio.create_task(service.operate("restart", busiest, "--timeout", "2", "--force"))
            await service.says(f"draining {busiest}", after=logged, within_s=COMMAND_S)
            await asyncio.sleep(draw.expovariate(1 / MOVES_S))
            hurt_at = time.monotonic()
            await _hurt(draw.choice(victims), fault, draw.uniform(0.2, 6.0))
            said = await leaving
            await service.all_workers_up()
            await load.everybody_streams(since=time.monotonic())
        await service.all_pages_back()
        print(
            f"\n{fault} during moves, round {round_}: streams stood still for "
            f"{load.interruption(hurt_at):.2f} s; {len(load.stories)} answers, {len(load.refusals)} refused; "
            f"{' '.join(said.split())}",
            end="",
        )


async def _hurt(victim: psutil.Process, fault: str, seconds: float) -> None:
    """The worker that leaves may be gone by now."""
    try:
        if fault == "killed":
            victim.kill()
            return
        victim.suspend()
        try:
            await asyncio.sleep(seconds)
        finally:
            victim.resume()
    except psutil.NoSuchProcess:
        pass
