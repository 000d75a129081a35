"""Greedy answers of the real model are transformers' answers, token for token, however they are computed.

Real workers, real gRPC, KV through real UCX. Every size of chunk and page is seen in both modes; their full
product runs on tiny models in tests/integration, and on a readable KV cache in
tests/unit/engine/loop/test_engine.py. `make test` runs every size in one of the modes; the rest,
and the prompt of 1,000 tokens, are for `make test-all`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpc.baton.v1 import worker_pb2
from tests.e2e.conftest import NUM_TOKENS, Oracle
from tests.integration import tiny_cluster
from tests.integration.tiny_cluster import Link, pair, work, worker
from worker.config import WorkerRole

BASE: dict[str, Any] = {
    "page_size": 16,
    "num_pages": 256,
    "chunk_budget": 256,
    "max_model_len": 2048,
    "max_running_requests": 32,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "chunks of 16, pages of 1": {"chunk_budget": 16, "page_size": 1, "num_pages": 4096},
    "chunks of 256, pages of 16": {},
    "chunking off, pages of 64": {"chunk_budget": None, "page_size": 64, "num_pages": 96},
}
MODES = ["mixed", "disagg"]
SHORT = ["one token", "a question", "French", "Chinese and Russian", "code", "300 tokens"]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt without chunking is one step of several seconds on a small machine."""
    monkeypatch.setattr(tiny_cluster, "PATIENCE_S", 200.0)


@asynccontextmanager
async def cluster(folder: Path, mode: str, **engine: Any) -> AsyncIterator[Cluster]:
    settings = BASE | engine
    if mode == "mixed":
        async with worker(folder, WorkerRole.DECODE, None, **settings) as link:

            async def generate(job: worker_pb2.Work) -> list[int]:
                await link.submit(job)
                await link.next(job.request_id, "started")
                return (await link.tokens(job.request_id))[0]

            yield Cluster(generate, link.all_pages_back, link)
    else:
        async with pair(folder, "nixl", prefill=settings, decode=settings) as workers:
            yield Cluster(workers.generate, workers.all_pages_back, workers.decode)


class Cluster:
    def __init__(
        self,
        generate: Callable[[worker_pb2.Work], Awaitable[list[int]]],
        all_pages_back: Callable[[], Awaitable[None]],
        decode: Link,
    ) -> None:
        self._generate = generate
        self.all_pages_back = all_pages_back
        self._decode = decode

    async def preemptions(self) -> int:
        """Preemptions of the worker that decodes."""
        stats = await self._decode.stub.GetStats(worker_pb2.GetStatsRequest())
        return int(stats.preemptions)

    async def answer(self, prompt: list[int]) -> list[int]:
        return await self._generate(
            work(prompt, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS, ignore_eos=False)
        )

    async def answers(self, prompts: list[list[int]]) -> list[list[int]]:
        return list(await asyncio.gather(*(self.answer(prompt) for prompt in prompts)))


@pytest.mark.parametrize(
    ("mode", "setting"),
    [
        pytest.param(mode, setting, marks=() if (i + j) % 2 else pytest.mark.thorough)
        for i, mode in enumerate(MODES)
        for j, setting in enumerate(SETTINGS)
    ],
)
async def test_many_requests_at_once_are_answered_as_one_alone(
    smollm2: Path, oracle: Oracle, mode: str, setting: str
) -> None:
    """Each of them twice, so that they find each other's pages in the cache; one needs several chunks."""
    settings = SETTINGS[setting]
    names = SHORT * 2
    if settings.get("chunk_budget") != 16:  # of which 300 tokens are 19
        names.append("600 tokens")
    async with cluster(smollm2, mode, **settings) as cluster_:
        assert await cluster_.answers([oracle.prompts[name] for name in names]) == oracle.answers(names)
        await cluster_.all_pages_back()


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
async def test_a_prompt_of_1000_tokens_beside_shorter_ones_and_once_more_from_the_cache(
    smollm2: Path, oracle: Oracle, mode: str
) -> None:
    long = "1000 tokens"
    names = [long, "a question", "300 tokens"]
    async with cluster(smollm2, mode) as cluster_:
        assert await cluster_.answers([oracle.prompts[name] for name in names]) == oracle.answers(names)
        await cluster_.all_pages_back()
        assert await cluster_.answer(oracle.prompts[long]) == oracle.answer(long)
        await cluster_.all_pages_back()


@pytest.mark.parametrize("mode", [pytest.param("mixed", marks=pytest.mark.thorough), "disagg"])
async def test_a_pool_too_small_for_all_preempts_and_loses_no_token(
    smollm2: Path, oracle: Oracle, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Told how long the answers get, the scheduler would admit no more than fit.
    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), dtype=int),
    )
    # The longest first: the others are to come while it decodes.
    names = ["300 tokens", *["a question", "French", "Chinese and Russian", "code"] * 3]
    async with cluster(smollm2, mode, num_pages=44, max_model_len=512) as cluster_:
        assert await cluster_.answers([oracle.prompts[name] for name in names]) == oracle.answers(names)
        assert await cluster_.preemptions() > 0
        await cluster_.all_pages_back()
