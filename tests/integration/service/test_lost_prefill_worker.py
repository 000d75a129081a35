"""A prefill worker ends in the middle of a prompt: the answer goes on from the last chunk that arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from router.config.choices import Mode
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.token_stream import TokenStream
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from tests.faults.support.local_cluster import LocalWorker
from tests.integration.conftest import Oracle
from tests.integration.models.kinds_of_kv import latents, states, windows
from tests.integration.tiny_cluster import PATIENCE_S, slow_down, worker
from tests.integration.workers.caching.test_groups_on_tiers import SHAPE
from worker.config import WorkerRole

PROMPT = [(93 + i * i * 7) % 97 for i in range(160)]
CHUNK, STEP_S = 16, 0.1
ROLES = {"prefill-0": ROLE_PREFILL, "prefill-1": ROLE_PREFILL, "decode-0": ROLE_DECODE}


@pytest.mark.parametrize("transport", ["loopback", "nixl"])
async def test_a_prompt_goes_on_from_the_last_chunk_that_arrived(
    folder: Path, oracle: Oracle, transport: str
) -> None:
    assert await peer_tokens_after_a_loss(folder, oracle, transport) >= 4 * CHUNK


@pytest.mark.parametrize(
    ("make", "goes_on"),
    [
        (latents, True),
        (partial(windows, sliding_window=200), True),
        (partial(windows, sliding_window=40), False),
        (states, False),
    ],
    ids=["latents", "a window of the whole prompt", "a window that passes", "states"],
)
async def test_which_kinds_of_kv_go_on_from_chunks(
    make: Callable[..., PreTrainedModel], goes_on: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = make(**SHAPE).eval()
    model.save_pretrained(tmp_path)
    found = await peer_tokens_after_a_loss(tmp_path, Oracle(model), "loopback")
    assert (found >= 4 * CHUNK) if goes_on else found == 0


async def peer_tokens_after_a_loss(folder: Path, oracle: Oracle, transport: str) -> int:
    """Tokens that a second prefill worker gets from the decode worker, when the first one has ended."""
    async with AsyncExitStack() as stack:
        links = {
            name: await stack.enter_async_context(
                worker(folder, WorkerRole(name.split("-")[0]), transport, name, max_model_len=200)
            )
            for name in ROLES
        }
        handles = [LocalWorker(name, role, links[name].host) for name, role in ROLES.items()]
        registry = await stack.enter_async_context(Registry(handles))
        assert await registry.wait_for_all(PATIENCE_S)
        dispatcher = ClusterDispatcher(
            RouterConfig(model="tiny", mode=Mode.DISAGG), registry, RouterMetrics()
        )
        for name in ("prefill-0", "prefill-1"):
            slow_down(links[name].host, STEP_S)

        async def computed(name: str) -> int:
            return (await links[name].stub.GetStats(worker_pb2.GetStatsRequest())).prompt_tokens

        answer: list[int] = []
        sampling = sampling_pb2.SamplingParams(
            max_tokens=8, top_p=1.0, repetition_penalty=1.0, ignore_eos=True, seed=7
        )
        stream = TokenStream(lambda delta: answer.extend(delta.token_ids) is not None)
        asked = asyncio.create_task(
            dispatcher.generate(worker_pb2.Work(prompt=PROMPT, sampling=sampling), stream)
        )
        async with asyncio.timeout(PATIENCE_S):
            while not (begun := [n for n in ROLES if await computed(n) >= 6 * CHUNK]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (lost,) = begun
        await links[lost].host.stop()
        timings = await asked
        assert answer == oracle(PROMPT, 8)
        other = "prefill-1" if lost == "prefill-0" else "prefill-0"
        assert timings.prefill_worker == other
        found = timings.promoted["peer"]
        assert await computed(other) == len(PROMPT) - found
        for name in (other, "decode-0"):
            await links[name].all_pages_back()
        return found
