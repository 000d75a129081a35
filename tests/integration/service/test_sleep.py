"""Sleep: workers give memory back to the system, and answer as before when they have it again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import torch

from router.api.access import Access
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from worker.assembly import assemble
from worker.parts import Parts
from worker.request_handler import RequestHandler

PROMPT = list(range(5, 75))
MIB = 1 << 20
DOCUMENT: dict[str, Any] = {}
"""/openapi.json, which is the same for all of them, and takes seconds to make."""
OPEN = Access(rl=True)


@torch.no_grad()
def continued(model: Any, tokens: Sequence[int], count: int) -> list[int]:
    answer: list[int] = []
    for _ in range(count):
        answer.append(int(model(torch.tensor([[*tokens, *answer]])).logits[0, -1].argmax()))
    return answer


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def call(cluster: LocalCluster, path: str, body: Any = None, status: int = 200) -> Any:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client:
        answer = await (client.get(path) if path == "/is_sleeping" else client.post(path, json=body))
        assert answer.status_code == status, answer.text
        document = DOCUMENT or (await client.get("/openapi.json")).json()
        DOCUMENT.update(document)
    method = (
        document["paths"].get(path.partition("?")[0], {}).get("get" if path == "/is_sleeping" else "post")
    )
    if method is not None and status == 200:
        schema = method["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
    return answer.json()


async def ask(cluster: LocalCluster) -> list[int]:
    sampling = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    answer = await call(cluster, "/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": sampling})
    return list(answer["choices"][0]["token_ids"])


@pytest.mark.parametrize("mode", [Mode.MIXED, Mode.DISAGG])
async def test_memory_is_given_back_and_answers_are_the_same_afterwards(
    small: SmallModel, mode: Mode
) -> None:
    built: list[Parts] = []

    def keeping(parts: Parts) -> RequestHandler:
        built.append(parts)
        return assemble(parts)

    right = continued(small.model, PROMPT, 8)
    async with local_cluster(small, mode, access=OPEN, num_pages=20_000, assemble=keeping) as cluster:
        assert await ask(cluster) == right
        for parts in built:
            parts.runner.kv.memory.fill_(1)
        await call(cluster, "/reset_prefix_cache")
        pool = sum(parts.runner.kv.memory.nbytes for parts in built)
        before = resident()
        assert await call(cluster, "/sleep?level=2") == {"status": "asleep"}
        assert before - resident() > 0.9 * pool > 50 * MIB
        assert all(not parameter.any() for parts in built for parameter in _large(parts))
        assert await call(cluster, "/is_sleeping") == {"is_sleeping": True}
        waiting = asyncio.create_task(ask(cluster))
        await asyncio.sleep(0.05)
        error = (await call(cluster, "/resume", status=400))["error"]
        assert error["code"] == "asleep"
        await call(cluster, "/wake_up?tags=weights")
        assert not waiting.done()
        await call(cluster, "/wake_up?tags=kv_cache")
        assert await waiting == right
        assert await call(cluster, "/is_sleeping") == {"is_sleeping": False}
        await cluster.all_pages_back()


def _large(parts: Parts) -> list[torch.Tensor]:
    """Parameters whose memory is whole pages, but for its ends."""
    plain = [one for one in parts.runner.model.parameters() if one.layout is torch.strided]
    return [one.flatten()[1024:-1024] for one in plain if one.nbytes > 32 << 10]


async def test_as_sglang_asks_for_it_with_an_update_in_between(small: SmallModel, tmp_path: Path) -> None:
    async with local_cluster(small, Mode.MIXED, access=OPEN) as cluster:
        await call(cluster, "/release_memory_occupation", {"tags": None})
        folder = tmp_path / "same"
        shutil.copytree(small.folder, folder)
        error = (await call(cluster, "/update_weights_from_disk", {"model_path": str(folder)}, 400))["error"]
        assert error["code"] == "asleep"
        await call(cluster, "/resume_memory_occupation", {"tags": ["weights"]})
        await call(cluster, "/update_weights_from_disk", {"model_path": str(folder), "weight_version": "2"})
        await call(cluster, "/resume_memory_occupation", {"tags": ["kv_cache"]})
        assert await ask(cluster) == continued(small.model, PROMPT, 8)


async def test_requests_are_refused_by_mode_and_a_pause_outlasts_sleep(small: SmallModel) -> None:
    async with local_cluster(small, Mode.MIXED, access=OPEN) as cluster:
        await call(cluster, "/sleep?level=1&mode=abort")
        refused = await call(cluster, "/inference/v1/generate", {"token_ids": PROMPT}, 503)
        assert refused["error"]["code"] == "paused"
        await call(cluster, "/wake_up")
        await call(cluster, "/pause?mode=keep")
        await call(cluster, "/sleep")
        await call(cluster, "/wake_up")
        assert cluster.weights.is_paused
        await call(cluster, "/resume")
        assert await ask(cluster) == continued(small.model, PROMPT, 8)
        for path, param in (("/sleep?level=3", "level"), ("/wake_up?tags=all", "tags")):
            assert (await call(cluster, path, status=400))["error"]["param"] == param


async def test_with_several_routers_it_is_refused_by_name(small: SmallModel) -> None:
    async with local_cluster(small, Mode.MIXED, access=OPEN, names=("router-1", "router-2")) as cluster:
        other = cluster.others[0].registry.name
        assert await cluster.registry.wait_until(lambda: bool(cluster.registry.other_routers()), 30.0)
        for path in ("/sleep", "/sleep?level=2"):
            error = (await call(cluster, path, status=400))["error"]
            assert error["code"] == "several_routers"
            assert other in error["message"]
        assert not cluster.weights.is_paused
        assert await ask(cluster) == continued(small.model, PROMPT, 8)
