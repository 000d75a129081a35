"""Real Ray, with workers that invent their tokens: placing, restarting and stopping them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from engine.loader.checkpoint import Checkpoint
from router.cluster.ray_cluster import Cluster
from router.cluster.worker_plan import plan_workers
from router.config.settings import Device, RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics import RouterMetrics
from router.workers.registry import Registry, WorkerBroken
from rpc.baton.v1 import sampling_pb2
from tests.integration.fake_actor import broken_actor, fake_actor, stillborn_actor
from tests.integration.fake_worker import answer
from tests.unit.router.test_worker_plan import write_model

PROMPT = [1, 2, 3]


@asynccontextmanager
async def cluster(tmp_path: Path, actor_class: object, workers: int) -> AsyncIterator[Registry]:
    config = RouterConfig(model="m", device=Device.CPU, decode_workers=workers, startup_timeout=60.0)
    ray_cluster = Cluster(config, actor_class)
    try:
        machine = await ray_cluster.connect()
        plans = plan_workers(config, Checkpoint(write_model(tmp_path), "m"), machine)
        handles = await ray_cluster.place(plans, on_wait=lambda _: None)
        async with Registry(handles) as registry:
            yield registry
    finally:
        await ray_cluster.close()


async def test_a_killed_worker_is_restarted_and_its_request_goes_on(tmp_path: Path) -> None:
    async with cluster(tmp_path, fake_actor, workers=1) as registry:
        assert await registry.wait_for_all(60.0)
        dispatcher = ClusterDispatcher(RouterConfig(model="m"), registry, RouterMetrics("mixed"))
        (first,) = registry.sessions()
        seen: list[int] = []
        async with aclosing(dispatcher.generate(PROMPT, sampling_pb2.Sampling(max_tokens=20))) as deltas:
            async for delta in deltas:
                seen += delta.token_ids
                if len(seen) == 3:
                    os.kill(first.info.epoch, signal.SIGKILL)
        assert seen == answer(PROMPT, 20)
        (second,) = registry.sessions()
        assert second.info.epoch != first.info.epoch
    assert not alive(second.info.epoch)


async def test_a_worker_that_is_stopped_is_given_up_and_replaced(tmp_path: Path) -> None:
    async with cluster(tmp_path, fake_actor, workers=1) as registry:
        assert await registry.wait_for_all(60.0)
        dispatcher = ClusterDispatcher(RouterConfig(model="m"), registry, RouterMetrics("mixed"))
        (first,) = registry.sessions()
        seen: list[int] = []
        async with aclosing(dispatcher.generate(PROMPT, sampling_pb2.Sampling(max_tokens=20))) as deltas:
            async for delta in deltas:
                seen += delta.token_ids
                if len(seen) == 3:
                    os.kill(first.info.epoch, signal.SIGSTOP)
        assert seen == answer(PROMPT, 20)
        async with asyncio.timeout(10):
            while alive(first.info.epoch):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("actor_class", "words"),
    [(broken_actor, "no room for the weights"), (stillborn_actor, "a library is missing on this node")],
)
async def test_a_worker_that_cannot_start_ends_the_wait_with_its_own_words(
    tmp_path: Path, actor_class: object, words: str
) -> None:
    async with cluster(tmp_path, actor_class, workers=1) as registry:
        with pytest.raises(WorkerBroken, match=rf"decode-0 could not start: .*{words}"):
            await registry.wait_for_all(60.0)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
