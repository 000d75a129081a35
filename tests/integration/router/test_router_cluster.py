"""Real Ray, with workers that invent their tokens: placing, restarting and stopping them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from engine.modeling.loader.checkpoint import Checkpoint
from router.cluster.ray_cluster import Cluster
from router.cluster.ray_connection import RayConnection
from router.cluster.worker_config.machine import Machine
from router.cluster.worker_config.worker_plan import plan_workers
from router.command.admin.drain import WorkerDrainer
from router.command.admin.scaling import CannotScale, Scaling
from router.config.choices import Device
from router.config.groups.service import ClusterSettings, FailoverSettings
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.workers.member import WorkerBroken
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import sampling_pb2
from tests.integration.fake_actor import broken_actor, fake_actor, stillborn_actor
from tests.integration.fake_worker import answer
from tests.integration.reading import deltas_of
from tests.unit.router.cluster.worker_config.models import write_model
from worker.config import WorkerRole

DECODE = WorkerRole.DECODE
PROMPT = [1, 2, 3]
TESTS = 4
"""There is room for one worker each."""


@dataclass
class LocalRay:
    """One for all tests: it takes seconds to start."""

    cluster: Cluster
    machine: Machine
    config: RouterConfig


@pytest.fixture(scope="module")
def local_ray() -> Iterator[LocalRay]:
    config = RouterConfig(
        model="m",
        device=Device.CPU,
        decode_workers=TESTS,
        cluster=ClusterSettings(worker_cpus=1, startup_timeout=60.0),
        failover=FailoverSettings(router_timeout=2.0),
    )
    connection = RayConnection([config])
    cluster = Cluster(config, connection)
    try:
        asyncio.run(connection.join())
        yield LocalRay(cluster, asyncio.run(cluster.find()), config)
    finally:
        asyncio.run(connection.close())


@asynccontextmanager
async def one_worker(local_ray: LocalRay, folder: Path, actor_class: object) -> AsyncIterator[Registry]:
    config = replace(local_ray.config, decode_workers=1)
    plans = plan_workers(config, Checkpoint(write_model(folder), "m"), local_ray.machine)
    local_ray.cluster._actors._actor_class = actor_class
    (worker,) = await local_ray.cluster.place(plans, on_wait=lambda _: None)
    try:
        async with Registry([worker]) as registry:
            yield registry
    finally:
        await local_ray.cluster.end_workers()


async def answered_while_hurt(registry: Registry, hurt: signal.Signals) -> int:
    """A request whose worker gets a signal in the middle of its answer. Returns that process's id."""
    assert await registry.wait_for_all(60.0)
    dispatcher = ClusterDispatcher(RouterConfig(model="m"), registry, RouterMetrics())
    (first,) = registry.sessions()
    seen: list[int] = []
    async with aclosing(deltas_of(dispatcher, PROMPT, sampling_pb2.SamplingParams(max_tokens=20))) as deltas:
        async for delta in deltas:
            seen += delta.token_ids
            if len(seen) == 3:
                os.kill(first.info.epoch, hurt)
    assert seen == answer(PROMPT, 20)
    return first.info.epoch


async def test_a_killed_worker_is_restarted_and_its_request_continues(
    local_ray: LocalRay, tmp_path: Path
) -> None:
    async with one_worker(local_ray, tmp_path, fake_actor) as registry:
        first = await answered_while_hurt(registry, signal.SIGKILL)
        (second,) = registry.sessions()
        assert second.info.epoch != first
    await gone(second.info.epoch)


async def test_a_stopped_worker_is_declared_dead_and_replaced(
    local_ray: LocalRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.cluster.ray_worker._ANSWER_S", 1.0)
    async with one_worker(local_ray, tmp_path, fake_actor) as registry:
        await gone(await answered_while_hurt(registry, signal.SIGSTOP))


@pytest.mark.parametrize(
    ("actor_class", "words"),
    [(broken_actor, "no room for the weights"), (stillborn_actor, "a library is missing on this node")],
)
async def test_a_worker_that_cannot_start_fails_the_start_with_its_error(
    local_ray: LocalRay, tmp_path: Path, actor_class: object, words: str
) -> None:
    async with one_worker(local_ray, tmp_path, actor_class) as registry:
        with pytest.raises(WorkerBroken, match=rf"decode-0 could not start: .*{words}"):
            await registry.wait_for_all(60.0)


@asynccontextmanager
async def scaling(local_ray: LocalRay, name: str) -> AsyncIterator[tuple[Scaling, Registry]]:
    """One of several routers of the cluster, as Ray and the workers see them."""
    cluster = local_ray.cluster
    async with Registry([cluster.handle("decode-0")], name=name) as registry:
        assert await registry.wait_for_all(60.0)
        scaling = Scaling(cluster, registry, WorkerDrainer(registry), drain_timeout_s=1.0)
        running = asyncio.create_task(scaling.run())
        yield scaling, registry
        running.cancel()


async def test_routers_that_scale_at_once_start_each_worker_once_and_end_it_for_good(
    local_ray: LocalRay, tmp_path: Path
) -> None:
    async with (
        one_worker(local_ray, tmp_path, fake_actor),
        scaling(local_ray, "1 a") as (first, known_to_first),
        scaling(local_ray, "2 b") as (second, known_to_second),
    ):
        names = ["decode-0", "decode-1", "decode-2"]
        grown = await asyncio.gather(*(one.scale(DECODE, 3, 60.0) for one in (first, second)))
        assert grown == [names, names]
        pids = {session.worker_id: session.info.epoch for session in known_to_first.sessions()}
        assert {session.worker_id: session.info.epoch for session in known_to_second.sessions()} == pids
        assert await local_ray.cluster.actors() == set(names)
        with pytest.raises(CannotScale, match="--worker-cpus, or join a cluster"):
            await first.scale(DECODE, 1000, 60.0)

        assert await first.scale(DECODE, 1, 60.0) == ["decode-0"]
        await gone(pids["decode-1"])
        await gone(pids["decode-2"])
        assert await known_to_second.wait_until(lambda: len(known_to_second.members()) == 1, 30.0)
        assert [group["bundles"] for group in local_ray.cluster._detached._groups()] == [{0: {"CPU": 1.0}}]
        assert [second.desired(DECODE), second.ready(DECODE)] == [1, 1]


async def gone(pid: int) -> None:
    """Until that process has ended. Raises TimeoutError."""
    async with asyncio.timeout(30):
        while psutil.pid_exists(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
