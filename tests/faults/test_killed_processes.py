"""Workers and routers die at random moments under load: clients get the right tokens or a clean error.

Every client compares every token as it comes. What a death costs is printed: how long until the router
knew, until all streams went on, and until the dead was replaced.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.support.bounds import bounded
from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service, serve
from tests.faults.support.small_model import SmallModel

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

CLIENTS = 8
PATIENCE_S = 10.0
DETECTED_S = 1.25
"""Its stream breaks at once, but a busy machine may need a while to end a process: then by its silence."""
WORKERS_GONE_S = 15.0
RESUMED_S = 3.0
"""After the death, with a second worker of the role: a second to notice, two to go on."""


@bounded("rounds", here=1, soak=100)
@pytest.mark.parametrize("role", ["decode", "prefill"])
async def test_a_killed_worker_costs_time_and_nothing_else(
    service: Service, answers: Answers, role: str, rounds: int
) -> None:
    draw = random.Random(rounds)
    detections, interruptions = [], []
    for round_ in range(rounds):
        async with Load(service.clients(CLIENTS), answers) as load:
            await load.everybody_streams()
            await asyncio.sleep(draw.uniform(0.0, 1.0))
            written = len(service.running.text())
            draw.choice(service.workers(role)).kill()
            killed_at = time.monotonic()
            detections.append(await service.says(rf"lost {role}-\d", written, PATIENCE_S))
            await load.everybody_streams(since=killed_at + detections[-1])
            if role == "decode":  # another one takes over; the only prefill worker has to come back first
                assert not await service.are_all_workers_up(), "streams waited for the new worker"
            back_s = await service.all_workers_up()
        await service.says(rf"{role}-\d was restarted and is back .* was killed, by SIGKILL", written, 5.0)
        await service.all_pages_back()
        interruptions.append(load.interruption(killed_at))
        print(
            f"\n{role} killed, round {round_}: detected in {detections[-1]:.2f} s, streams stood still for "
            f"{interruptions[-1]:.2f} s, replaced {back_s:.1f} s later; {len(load.stories)} answers, "
            f"{len(load.refusals)} refused",
            end="",
        )
    if rounds > 1:  # figures of many rounds, on a machine that has nothing else to do
        assert max(detections) < DETECTED_S
        assert role != "decode" or statistics.median(interruptions) < RESUMED_S


@pytest.mark.thorough
@bounded("rounds", here=1, soak=100)
async def test_after_a_router_is_killed_clients_have_correct_prefixes_and_no_worker_is_left(
    small: SmallModel, answers: Answers, tmp_path: Path, rounds: int
) -> None:
    draw = random.Random(rounds)
    for round_ in range(rounds):
        with serve(small, tmp_path / f"log-{round_}", decode_workers=1) as service:
            async with Load(service.clients(CLIENTS, router_may_die=True), answers) as load:
                await load.everybody_streams()
                await asyncio.sleep(draw.uniform(0.0, 1.0))
                workers = service.workers("prefill") + service.workers("decode")
                service.running.process.send_signal(signal.SIGKILL)
                killed_at = time.monotonic()
                load.stop()
            assert not psutil.wait_procs(workers, timeout=WORKERS_GONE_S)[1]
            print(
                f"\nrouter killed, round {round_}: {len(load.refusals)} streams broke off, the last worker "
                f"was gone after {time.monotonic() - killed_at:.1f} s",
                end="",
            )
