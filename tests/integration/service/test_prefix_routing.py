"""Requests go to workers that have their prefixes cached, by what the workers report."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from router.config.choices import Mode, Routing
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.token_stream import Delta, TokenStream
from router.dispatch.workers.registry import Registry
from router.placement import LinkView
from rpc.baton.v1 import sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE
from tests.faults.support.local_cluster import LocalWorker
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import worker
from worker.config import WorkerRole

NAMES = ("decode-0", "decode-1")


def prompt(seed: int, length: int = 48) -> list[int]:
    return [(seed * 31 + i * i * 7) % 97 for i in range(length)]


@dataclass
class Served:
    registry: Registry
    dispatcher: ClusterDispatcher

    async def ask(self, tokens: list[int], max_tokens: int = 4) -> tuple[list[int], str, int]:
        """The answer, the worker that computed it, and the prompt tokens that it had cached."""
        sampling = sampling_pb2.SamplingParams(
            max_tokens=max_tokens, top_p=1.0, repetition_penalty=1.0, ignore_eos=True
        )
        answer: list[int] = []
        cached = 0

        def deliver(delta: Delta) -> bool:
            nonlocal cached
            answer.extend(delta.token_ids)
            cached = max(cached, delta.cached_tokens or 0)
            return False

        timings = await self.dispatcher.generate(
            worker_pb2.Work(prompt=tokens, sampling=sampling), TokenStream(deliver)
        )
        return answer, timings.decode_worker, cached

    async def reported(self, name: str, pages: int) -> None:
        async with asyncio.timeout(10.0):
            while True:
                session = next(s for s in self.registry.sessions() if s.worker_id == name)
                if len(session.load.cached) == pages:
                    return
                await asyncio.sleep(0.01)


@asynccontextmanager
async def served(
    folder: Path, routing: Routing = Routing.PREFIX_AWARE, *, pull_kv: bool = False, **engine: int
) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        links = [
            await stack.enter_async_context(worker(folder, WorkerRole.DECODE, "loopback", **engine))
            for _ in NAMES
        ]
        handles = [LocalWorker(name, ROLE_DECODE, link.host) for name, link in zip(NAMES, links, strict=True)]
        registry = await stack.enter_async_context(Registry(handles))
        assert await registry.wait_for_all(20.0)
        config = RouterConfig(model="tiny", mode=Mode.MIXED, routing=routing, pull_kv=pull_kv)
        yield Served(registry, ClusterDispatcher(config, registry, RouterMetrics()))


async def test_the_turns_of_a_chat_stay_on_the_worker_that_has_them_cached(
    folder: Path, oracle: Oracle
) -> None:
    async with served(folder) as cluster:
        homes = []
        for seed in range(4):
            conversation = prompt(seed)
            answer, home, _ = await cluster.ask(conversation)
            homes.append(home)
            for turn in range(2):
                conversation = [*conversation, *answer, *prompt(10 * seed + turn, 8)]
                answer, worker_id, cached = await cluster.ask(conversation)
                assert answer == oracle(conversation, 4)
                assert worker_id == home
                assert cached >= 44
        assert set(homes) == set(NAMES)


async def test_requests_with_one_prefix_that_come_together_compute_it_once(folder: Path) -> None:
    async with served(folder) as cluster:
        shared = prompt(1, 64)
        asked = [cluster.ask([*shared, *prompt(seed, 4)]) for seed in range(6)]
        assert len({worker_id for _, worker_id, _ in await asyncio.gather(*asked)}) == 1


async def test_a_router_that_reconnects_gets_the_whole_content_of_the_cache(folder: Path) -> None:
    async with served(folder) as cluster:
        _, home, _ = await cluster.ask(prompt(3))
        session = next(s for s in cluster.registry.sessions() if s.worker_id == home)
        blocks = session.load.cached
        await cluster.reported(home, len(blocks))
        pages = len(blocks)
        assert pages
        session.dismiss("to reconnect")
        async with asyncio.timeout(20.0):
            while session in cluster.registry.sessions():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await cluster.registry.wait_for_all(20.0)
        await cluster.reported(home, pages)
        assert (await cluster.ask(prompt(3)))[1] == home


async def test_what_a_worker_evicts_is_not_counted_on(folder: Path) -> None:
    async with served(folder, num_pages=20) as cluster:
        for seed in range(12):
            await cluster.ask(prompt(seed))
        for session in cluster.registry.sessions():
            assert len(session.load.cached) <= 20
        assert sum(len(s.load.cached) for s in cluster.registry.sessions()) > 10


@pytest.mark.parametrize("routing", list(Routing))
async def test_every_rule_places_requests(folder: Path, oracle: Oracle, routing: Routing) -> None:
    async with served(folder) as cluster:
        config = RouterConfig(model="tiny", mode=Mode.MIXED, routing=routing)
        dispatcher = ClusterDispatcher(config, cluster.registry, RouterMetrics())
        answers = await asyncio.gather(
            *(Served(cluster.registry, dispatcher).ask(prompt(seed)) for seed in range(6))
        )
        assert [answer for answer, _, _ in answers] == [oracle(prompt(seed), 4) for seed in range(6)]


async def test_a_worker_gets_the_prefix_from_the_one_that_has_it_cached(
    folder: Path, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.dispatch.routing.selector._LINK", LinkView(math.inf, latency_s=0.0))
    async with served(folder, Routing.ROUND_ROBIN, pull_kv=True) as cluster:
        tokens = prompt(3)
        _, first, _ = await cluster.ask(tokens)
        await cluster.reported(first, 12)
        longer = [*tokens, 5, 6, 7]
        answer, second, cached = await cluster.ask(longer)
        assert second != first
        assert answer == oracle(longer, 4)
        assert cached == 48
