"""Prefill on one GPU, decode on the other or on the same: the answers of a model that never moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from benchmarks.lib.servers.server import BatonServer
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.gpu.models import save
from tests.gpu.test_gpu_engine import PROMPTS, expected
from tests.integration.tiny_cluster import Pair, pair, work

TOKENS = 24
LAYOUTS = [
    (2, "--mode disagg"),
    (2, "--mode mixed --tensor-parallel-size 2"),
    (3, "--mode disagg --prefill-tensor-parallel-size 2"),
    (3, "--mode disagg --decode-tensor-parallel-size 2"),
    (4, "--mode disagg --tensor-parallel-size 2"),
    (4, "--mode mixed --tensor-parallel-size 4"),
]
"""GPUs that it takes, and what is asked of the router."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Pair, torch.nn.Module]]:
    """Both workers on the first GPU, in this process, in float32: KV takes NIXL's way all the same."""
    model = save("llama-64", tmp_path).cuda()
    engine: dict[str, Any] = {
        "device": "cuda",
        "attention_backend": "torch",
        "page_size": 16,
        "num_pages": 256,
        "max_model_len": 1024,
        "max_running_requests": 32,
        "overlap": True,
        "chunk_budget": 64,
    }
    async with pair(tmp_path, "nixl", prefill=engine, decode=engine) as both:
        yield both, model


async def test_in_float32_answers_equal_transformers(cluster: tuple[Pair, torch.nn.Module]) -> None:
    both, model = cluster
    for _ in range(2):  # the second time, the first pages are in both caches
        jobs = [work(prompt, max_tokens=TOKENS) for prompt in PROMPTS]
        answers = await asyncio.gather(*(both.generate(job) for job in jobs))
        assert answers == [expected(model, list(prompt), TOKENS) for prompt in PROMPTS]
    await both.all_pages_back()


class TestThroughTheRouter:
    """Real Ray: every worker, and every rank of one, is a process that sees one GPU."""

    @pytest.fixture
    def small(self, tmp_path: Path) -> SmallModel:
        return save_small_model(tmp_path / "small")

    @pytest.mark.parametrize(("gpus", "flags"), LAYOUTS)
    def test_in_float32_answers_equal_transformers(self, small: SmallModel, gpus: int, flags: str) -> None:
        if torch.cuda.device_count() < gpus:
            pytest.skip(f"fewer than {gpus} GPUs")
        common = ["--model", str(small.folder), "--device", "cuda", "--dtype", "float32"]
        with BatonServer(*flags.split(), *common, "--kv-pool-tokens", "16384", shows_output=True) as server:
            for seed in range(3):
                question = small.question(seed, length=300 * seed + 5, max_tokens=TOKENS)
                answer = complete(server.url, list(question.prompt))
                assert answer == small.text(small.answer(question))


def complete(url: str, prompt: list[int]) -> str:
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body["model"] = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    response.raise_for_status()
    text: str = response.json()["choices"][0]["text"]
    return text
