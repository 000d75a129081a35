"""Adaptive mode with two real workers: either one prefills, decodes, or does both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from router.config.choices import Mode
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.token_stream import TokenStream
from router.dispatch.workers.registry import Registry
from router.placement import PRIOR, ClusterView, HandoffRule, Placement, PlacementPolicy, RequestView, Why
from rpc.baton.v1 import router_pb2, sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from tests.faults.support.local_cluster import LocalWorker
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import PATIENCE_S, Link, slow_down, worker
from worker.config import WorkerRole

PAGE = 4
P, D = "prefill-0", "decode-0"
EVERY_PAIR = [(P, P), (D, D), (P, D), (D, P)]
ROLES = {WorkerRole.PREFILL: ROLE_PREFILL, WorkerRole.DECODE: ROLE_DECODE}


def prompt(seed: int, length: int = 50) -> list[int]:
    return [(seed * 31 + i * i * 7) % 97 for i in range(length)]


class Forced(PlacementPolicy):
    """Places requests on the given pairs in turn, or on the only worker that is left."""

    handoffs = HandoffRule.ANY_WAY

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self.pairs = pairs
        self.placed = 0

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        ids = {worker.id.partition("@")[0]: worker.id for worker in view.workers}
        left = view.workers[0].id
        prefill, decode = self.pairs[self.placed % len(self.pairs)]
        self.placed += 1
        return Placement(ids.get(prefill, left), ids.get(decode, left), Why("forced"))


@dataclass
class Cluster:
    dispatcher: ClusterDispatcher
    registry: Registry
    links: dict[str, Link]

    async def generate(self, tokens: list[int], max_tokens: int = 12) -> tuple[list[int], router_pb2.Timings]:
        sampling = sampling_pb2.SamplingParams(
            max_tokens=max_tokens, top_p=1.0, repetition_penalty=1.0, ignore_eos=True, seed=7
        )
        answer: list[int] = []
        stream = TokenStream(lambda delta: answer.extend(delta.token_ids) is not None)
        return answer, await self.dispatcher.generate(
            worker_pb2.Work(prompt=tokens, sampling=sampling), stream
        )

    async def all_pages_back(self) -> None:
        for link in self.links.values():
            await link.all_pages_back()


@asynccontextmanager
async def cluster(folder: Path, policy: Forced | None, **engine: int) -> AsyncIterator[Cluster]:
    """`policy`: None: that of the product."""
    async with AsyncExitStack() as stack:
        links = {
            f"{role.value}-0": await stack.enter_async_context(worker(folder, role, "loopback", **engine))
            for role in ROLES
        }
        handles = [
            LocalWorker(f"{role.value}-0", ROLES[role], links[f"{role.value}-0"].host) for role in ROLES
        ]
        registry = await stack.enter_async_context(Registry(handles))
        assert await registry.wait_for_all(20.0)
        config = RouterConfig(model="tiny", mode=Mode.ADAPTIVE)
        make_policy = None if policy is None else lambda _: policy
        dispatcher = ClusterDispatcher(config, registry, RouterMetrics(), make_policy)
        yield Cluster(dispatcher, registry, links)


@pytest.mark.parametrize("pair", EVERY_PAIR)
async def test_tokens_equal_those_of_transformers_under_every_placement(
    folder: Path, oracle: Oracle, pair: tuple[str, str]
) -> None:
    async with cluster(folder, Forced(pair)) as served:
        answer, timings = await served.generate(prompt(3))
        assert answer == oracle(prompt(3), 12)
        assert (timings.prefill_worker, timings.decode_worker) == pair
        assert timings.placement.startswith("forced")
        await served.all_pages_back()


async def test_workers_send_handoffs_in_both_directions_while_they_decode(
    folder: Path, oracle: Oracle
) -> None:
    async with cluster(folder, Forced(*EVERY_PAIR)) as served:
        prompts = [prompt(seed, 10 + 5 * seed) for seed in range(12)]
        answers = await asyncio.gather(*(served.generate(p) for p in prompts))
        assert [answer for answer, _ in answers] == [oracle(p, 12) for p in prompts]
        await served.all_pages_back()


async def test_handoffs_in_both_directions_complete_with_full_pools(folder: Path, oracle: Oracle) -> None:
    async with cluster(folder, Forced(*EVERY_PAIR), num_pages=36) as served:
        prompts = [prompt(seed, 40) for seed in range(12)]
        answers = await asyncio.gather(*(served.generate(p, max_tokens=40) for p in prompts))
        assert [answer for answer, _ in answers] == [oracle(p, 40) for p in prompts]
        await served.all_pages_back()


async def test_two_workers_with_full_pools_do_not_deadlock(folder: Path, oracle: Oracle) -> None:
    """Both pools are full of prompts whose KV is to be sent to the other worker."""
    async with cluster(folder, Forced((P, D), (D, P)), num_pages=24) as served:
        for link in served.links.values():
            slow_down(link.host, seconds=0.01)
        prompts = [prompt(seed, 40) for seed in range(8)]
        async with asyncio.timeout(PATIENCE_S / 2):  # a handoff's own limit is longer
            answers = await asyncio.gather(*(served.generate(p, max_tokens=8) for p in prompts))
        assert [answer for answer, _ in answers] == [oracle(p, 8) for p in prompts]
        await served.all_pages_back()


async def test_clients_that_disconnect_during_handoffs_in_both_directions_leak_no_page(
    folder: Path,
) -> None:
    async with cluster(folder, Forced(*EVERY_PAIR)) as served:
        for link in served.links.values():
            slow_down(link.host, seconds=0.01)
        asked = [asyncio.create_task(served.generate(prompt(seed, 60), 40)) for seed in range(8)]
        for link in served.links.values():
            async with asyncio.timeout(10.0):
                while not (await link.pages()).held:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await served.all_pages_back()


@pytest.mark.parametrize("pair", EVERY_PAIR)
@pytest.mark.parametrize("ended", [P, D])
async def test_a_stream_continues_when_either_worker_ends(
    folder: Path, oracle: Oracle, pair: tuple[str, str], ended: str
) -> None:
    async with cluster(folder, Forced(pair)) as served:
        for link in served.links.values():
            slow_down(link.host, seconds=0.01)
        asked = asyncio.create_task(served.generate(prompt(5), max_tokens=40))
        session = next(s for s in served.registry.sessions() if s.worker_id == pair[1])
        async with asyncio.timeout(10.0):
            while not session.load.room().running:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await served.links[ended].host.stop()
        answer, _ = await asked
        assert answer == oracle(prompt(5), 40)
        again, timings = await served.generate(prompt(6))
        assert again == oracle(prompt(6), 12)
        assert timings.prefill_worker == timings.decode_worker == (P if ended == D else D)


async def test_the_adaptive_policy_fits_measured_steps_and_explains_its_placement(
    folder: Path, oracle: Oracle
) -> None:
    async with cluster(folder, None) as served:
        for seed in range(6):
            answer, timings = await served.generate(prompt(seed))
            assert answer == oracle(prompt(seed), 12)
            assert timings.placement.startswith("adaptive: TTFT")
        view = served.dispatcher.selector.cluster.view(time.monotonic())
        assert all(w.step_time != PRIOR for w in view.workers)
        assert all(
            (w.decodes, w.incoming, w.prompts, w.context_tokens) == (0, 0, (), 0) for w in view.workers
        )
        await served.all_pages_back()
