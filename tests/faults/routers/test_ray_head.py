"""The head of Ray ends. Streams need no Ray, and the workers stay if its GCS keeps its state."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.support.joined import cached_tokens, joined, worker_pids
from tests.faults.support.load import Answers, Load
from tests.faults.support.small_model import SmallModel
from tests.running_ray import running_ray

pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

CLIENTS = 6
AWAY_S = 8.0
"""Longer than a request to Ray may take."""
OLD_RAY_ENDS_S = 120.0


async def test_nothing_ends_while_a_gcs_that_keeps_its_state_is_away(
    small: SmallModel, answers: Answers, tmp_path: Path
) -> None:
    with (
        running_ray(num_cpus=3, state=tmp_path / "gcs") as running,
        joined(small, running.address, tmp_path / "first", decode_workers=2) as first,
    ):
        before = await worker_pids(first)
        async with Load(first.clients(CLIENTS), answers) as load:
            await load.everybody_streams()
            running.kill_gcs()
            await asyncio.sleep(AWAY_S)
            await load.everybody_streams(since=time.monotonic())
            running.start_gcs()
            with joined(small, running.address, tmp_path / "second", decode_workers=2) as second:
                assert await worker_pids(second) == before
                assert await cached_tokens(second, answers.questions[0].prompt) > 0
            psutil.Process(before["decode-1"]).kill()
            await first.says("decode-1 was restarted and is back", 0, 90.0)
            await load.everybody_streams(since=time.monotonic())
        assert not load.refusals
        after = await worker_pids(first)
        assert {name for name in after if after[name] != before[name]} == {"decode-1"}
        await first.all_pages_back()


async def test_a_worker_that_ends_while_ray_is_away_is_restarted_when_it_is_back(
    small: SmallModel, answers: Answers, tmp_path: Path
) -> None:
    with (
        running_ray(num_cpus=3, state=tmp_path / "gcs") as running,
        joined(small, running.address, tmp_path / "log", decode_workers=2) as service,
    ):
        before = await worker_pids(service)
        async with Load(service.clients(CLIENTS), answers) as load:
            await load.everybody_streams()
            running.kill_gcs()
            psutil.Process(before["decode-0"]).kill()
            await asyncio.sleep(AWAY_S)
            await load.everybody_streams(since=time.monotonic())
            running.start_gcs()
            await service.says("decode-0 was restarted and is back", 0, 90.0)
        assert not load.refusals
        await service.all_pages_back()


async def test_another_gcs_ends_the_router_after_its_streams_and_later_the_workers(
    small: SmallModel, answers: Answers, tmp_path: Path
) -> None:
    with (
        running_ray(num_cpus=2) as running,
        joined(small, running.address, tmp_path / "log") as service,
    ):
        workers = [psutil.Process(pid) for pid in (await worker_pids(service)).values()]
        async with Load(service.clients(CLIENTS, router_may_die=True), answers) as load:
            await load.everybody_streams()
            running.kill_gcs()
            running.start_gcs()
            await service.says("another Ray answers .* Ray was restarted", 0, 30.0)
            load.stop()
        assert await asyncio.to_thread(service.running.process.wait, 60) == 3
        cut = [story for story in load.stories if story.refusal is not None and story.times]
        assert not cut, "a stream of a living worker ended"
        assert not (await asyncio.to_thread(psutil.wait_procs, workers, OLD_RAY_ENDS_S))[1]
