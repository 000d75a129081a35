"""Mixed load for a long time: memory does not grow, no page is lost, and no error occurs."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

import numpy as np
import psutil
import pytest

from tests.faults.support.bounds import bounded
from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

CLIENTS = 8
SAMPLES = 100
WARM_UP = 0.3
"""Share of the whole time: caches fill, allocators find their size."""
LOUDEST_MIB = 24.0
"""What a process may grow in a short run, where a slope says little."""
STEEPEST_MIB_PER_HOUR = 32.0


@bounded("seconds", here=8.0, soak=3600.0)
async def test_under_mixed_load_memory_stays_flat_and_no_page_is_lost(
    service: Service, answers: Answers, seconds: float
) -> None:
    memory: dict[str, list[tuple[float, float]]] = defaultdict(list)
    began = time.monotonic()
    async with Load(service.clients(CLIENTS), answers) as load:
        while (elapsed := time.monotonic() - began) < seconds:
            for name, process in service.processes().items():
                memory[name].append((elapsed, _resident_mib(process)))
            await asyncio.sleep(seconds / SAMPLES)
    await service.all_pages_back()
    assert not load.refusals

    print(
        f"\n{len(load.stories)} answers in {seconds:.0f} s; MiB at the end, and a line through the last 70%:"
    )
    for name, samples in memory.items():
        hours, mib = np.array([s for s in samples if s[0] > WARM_UP * seconds]).T / np.array(
            [[3600.0], [1.0]]
        )
        slope = float(np.polyfit(hours, mib, 1)[0])
        print(f"  {name:40} {mib[-1]:7.1f} MiB {slope:+8.1f} MiB/h")
        assert mib[-1] - mib[0] < LOUDEST_MIB, name
        if seconds >= 1800:
            assert slope < STEEPEST_MIB_PER_HOUR, name


def _resident_mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20
