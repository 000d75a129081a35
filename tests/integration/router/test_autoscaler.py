"""The number of workers follows the load, to none and back, over fake workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from router.cluster.fleet import WantedWorkers
from router.command.admin.autoscaler import Autoscaler, LoadReader
from router.command.admin.drain import WorkerDrainer
from router.command.admin.scaling import Scaling
from router.config.table import configured
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import sampling_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE
from rpc.channel import Endpoint
from tests.faults.support.local_cluster import LocalWorker
from tests.integration.fake_cluster import PROMPT, Service, service
from tests.integration.fake_worker import FakeWorker, answer, decode_worker
from tests.integration.reading import deltas_of
from tests.integration.tiny_cluster import slow_down, worker
from worker.config import WorkerRole

DECODE = WorkerRole.DECODE
COOLDOWN_S = 60.0


@dataclass
class Place:
    """Where a worker starts when it is asked for its address."""

    worker_id: str
    role: int = ROLE_DECODE
    worker: FakeWorker | None = None

    async def endpoint(self) -> Endpoint:
        if self.worker is None:
            self.worker = decode_worker(self.worker_id)
            await self.worker.start()
        return await self.worker.endpoint()

    async def stop(self) -> None:
        if self.worker is not None:
            await self.worker.stop()

    async def revive(self) -> None:
        raise AssertionError


@dataclass
class Supply:
    roles: tuple[WorkerRole, ...] = (DECODE,)
    places: list[Place] = field(default_factory=list)
    given_back: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workers = WantedWorkers.first(DECODE, 1)

    async def wanted(self) -> Mapping[WorkerRole, WantedWorkers]:
        return {DECODE: self.workers}

    async def want(self, role: WorkerRole, workers: WantedWorkers) -> None:
        self.workers = workers

    async def actors(self) -> set[str]:
        return set()

    async def lacks_room(self, counts: Mapping[WorkerRole, int]) -> str:
        return ""

    async def give_back(self, worker_id: str) -> None:
        self.given_back.append(worker_id)

    def keeps_room(self, worker_id: str) -> bool:
        return False

    def handle(self, worker_id: str) -> Place:
        self.places.append(Place(worker_id))
        return self.places[-1]

    def settings_digest(self, worker_id: str) -> str:
        return ""


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def autoscaled(served: Service, supply: Supply, clock: Clock) -> AsyncIterator[Autoscaler]:
    config = configured({"model": "m", "autoscale": "decode=0:2", "autoscale_cooldown": COOLDOWN_S})
    dispatcher, registry = served.dispatcher, served.registry
    dispatcher.wakes_workers = True
    scaling = Scaling(supply, registry, WorkerDrainer(registry), drain_timeout_s=0.0, may_wake=True)
    load = LoadReader(
        config,
        registry,
        dispatcher.prefill_queue,
        served.metrics.recent,
        lambda: dispatcher.running,
        dispatcher.lone_decode_s,
    )
    await scaling.adjust()
    yield Autoscaler(config, scaling, load.read, lambda: registry.leads, clock)
    for place in supply.places:
        await place.stop()


async def test_the_last_worker_leaves_when_idle_and_a_waiting_request_starts_one() -> None:
    supply, clock = Supply(), Clock()
    async with service(decode_worker("decode-0")) as served, autoscaled(served, supply, clock) as autoscaler:
        assert await served.tokens() == answer(PROMPT, 8)
        for clock.now in (0.0, COOLDOWN_S - 1):
            await autoscaler.look()
            assert len(served.registry.members()) == 1
        clock.now = COOLDOWN_S
        await autoscaler.look()
        assert await served.registry.wait_until(lambda: not served.registry.members(), 10.0)
        assert supply.given_back == ["decode-0"]

        assert served.dispatcher.ready(), "load balancers would send no request that starts a worker"
        waiting = asyncio.create_task(served.tokens())
        while not served.dispatcher.running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await autoscaler.look()
        assert await waiting == answer(PROMPT, 8)
        assert [place.worker_id for place in supply.places] == ["decode-0"]


async def test_a_nearly_full_kv_pool_is_a_reason_for_another_worker() -> None:
    supply, clock = Supply(), Clock()
    async with service(decode_worker("decode-0")) as served, autoscaled(served, supply, clock) as autoscaler:
        [session] = served.registry.sessions()
        served.workers[0].report(total_pages=100, free_pages=10)
        while session.load.available_pages != 10:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await autoscaler.look()
        assert supply.workers.worker_ids == ("decode-0", "decode-1")
        assert await served.registry.wait_until(served.registry.all_ready, 10.0)
        assert len(served.registry.sessions()) == 2


async def test_an_itl_target_that_a_lone_answer_misses_is_no_reason_for_another_worker() -> None:
    config = configured({"model": "m", "itl_target_ms": 20.0})
    async with service(decode_worker("decode-0")) as served:
        recent = served.metrics.recent
        recent.gaps(0.14, 100)

        def itl(lone_decode_s: float) -> float:
            queue = served.dispatcher.prefill_queue
            load = LoadReader(config, served.registry, queue, recent, lambda: 1, lambda: lone_decode_s)
            return load.read(DECODE).itl

        assert itl(0.01) > 1.0
        assert itl(0.1) < 1.0, "its steps with prompts take up to 150 ms"


async def test_the_steps_of_a_worker_without_a_kv_transport_are_measured(folder: Path) -> None:
    config = configured({"model": "m", "autoscale": "decode=1:2"})
    async with (
        worker(folder, DECODE, None) as link,
        Registry([LocalWorker("decode-0", ROLE_DECODE, link.host)]) as registry,
    ):
        assert await registry.wait_for_all(20.0)
        dispatcher = ClusterDispatcher(config, registry, RouterMetrics())
        guessed = dispatcher.lone_decode_s()
        slow_down(link.host, 0.05)
        sampling = sampling_pb2.SamplingParams(max_tokens=90, ignore_eos=True)
        assert [delta async for delta in deltas_of(dispatcher, [1, 2, 3], sampling)]
        assert guessed < 0.02 < dispatcher.lone_decode_s()
