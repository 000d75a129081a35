"""Either worker of a split prompt is killed, in either part of it: clients get the right tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from router.config.settings import Mode, RouterConfig, Routing
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics import RouterMetrics
from router.dispatch.routing.adaptive import AdaptivePlacing
from router.dispatch.routing.worker_choice import WorkerChoice
from router.placement import ClusterView, Placement, RequestView, Why
from router.workers.registry import Registry
from rpc.baton.v1 import router_pb2, sampling_pb2
from tests.faults.small_model import Question, SmallModel
from tests.faults.worker_process import WorkerProcess, worker_process
from worker.config import WorkerRole

pytestmark = [pytest.mark.timeout(300), pytest.mark.alone]

SPLIT, LENGTH = 512, 1000
STEP_S = 0.03


class Splits:
    """From the prefill to the decode worker, as long as both are there."""

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        workers = sorted((worker.id for worker in view.workers), reverse=True)
        placement = Placement(workers[0], workers[-1], Why("test"))
        return placement if placement.is_local else replace(placement, split=SPLIT)


@dataclass
class Cluster:
    dispatcher: ClusterDispatcher
    placing: AdaptivePlacing
    prefill: WorkerProcess
    decode: WorkerProcess

    def queue(self, worker: WorkerProcess) -> int:
        """Prompt tokens that this worker still has to compute."""
        if self.placing._ledger is None:
            return 0
        view = self.placing._ledger.view(time.monotonic())
        return sum(w.prompt_tokens for w in view.workers if w.id.startswith(worker.worker_id))

    async def ask(self, question: Question) -> tuple[list[int], router_pb2.Timings]:
        sampling = sampling_pb2.SamplingParams(
            max_tokens=question.max_tokens, top_p=1.0, repetition_penalty=1.0, ignore_eos=True, seed=7
        )
        answer: list[int] = []
        async with aclosing(self.dispatcher.generate(question.prompt, sampling)) as deltas:
            async for delta in deltas:
                answer += delta.token_ids
        assert delta.timings is not None
        return answer, delta.timings


@asynccontextmanager
async def cluster(small: SmallModel) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(worker_process(small.folder, role, STEP_S))
            for role in (WorkerRole.PREFILL, WorkerRole.DECODE)
        ]
        registry = await stack.enter_async_context(Registry(workers))
        assert await registry.wait_for_all(20.0)
        placing = AdaptivePlacing(registry, WorkerChoice(registry, Routing.LEAST_LOADED), lambda _: Splits())
        config = RouterConfig(model="small", mode=Mode.ADAPTIVE)
        dispatcher = ClusterDispatcher(config, registry, RouterMetrics("adaptive"), placing)
        yield Cluster(dispatcher, placing, *workers)


@pytest.mark.parametrize(("victim", "part"), [("prefill", 0), ("decode", 1)])
async def test_a_worker_that_is_killed_in_the_middle_of_its_part_costs_time_and_nothing_else(
    small: SmallModel, victim: str, part: int
) -> None:
    question = small.question(1, length=LENGTH, max_tokens=60)
    async with cluster(small) as served:
        asked = asyncio.create_task(served.ask(question))
        first, second = served.prefill, served.decode

        def is_in_the_middle() -> bool:
            if part == 0:
                return 0 < served.queue(first) < SPLIT and served.queue(second) == LENGTH - SPLIT
            return served.queue(first) == 0 < served.queue(second) < LENGTH - SPLIT

        async with asyncio.timeout(20.0):
            while not is_in_the_middle():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        (first if victim == "prefill" else second).kill()
        answer, timings = await asked
        assert small.says(question, answer)
        assert timings.split == 0, "the next attempt computes all of it on the worker that is left"
