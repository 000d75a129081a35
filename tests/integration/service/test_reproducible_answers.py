"""With --reproducible, a service computes the bits of one process, whatever happens to a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton import LLM
from engine.config import UNIFORM
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.integration.models.kinds_of_kv import windows
from tests.integration.models.test_reproducible import ASKED, PROMPTS, ask, opened
from tests.integration.service.test_receipts_of_disturbed_answers import decoding

LONG = 300


@pytest.fixture(scope="module", params=["full attention", "windows"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    folder: Path = tmp_path_factory.mktemp("model")
    return (
        save_small_model(folder) if request.param == "full attention" else save_small_model(folder, windows)
    )


def chosen(llm: LLM, prompt: Sequence[int], **more: Any) -> list[tuple[int, float]]:
    """Tokens of an answer computed alone, with their log-probabilities."""
    ((tokens, found),) = ask(llm, [prompt], **more)
    return [(token, each[token]) for token, each in zip(tokens, found, strict=True)]


async def answered(cluster: LocalCluster, prompt: Sequence[int], **more: Any) -> list[tuple[int, float]]:
    body = ASKED | {"prompt": prompt, "seed": len(prompt), "return_token_ids": True} | more
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client:
        choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    return list(zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True))


async def streamed(cluster: LocalCluster, prompt: Sequence[int], seen: asyncio.Event) -> list[Any]:
    """A long answer; `seen` is set once a decode worker has computed some of it."""
    body = ASKED | {"prompt": prompt, "seed": len(prompt), "return_token_ids": True, "max_tokens": LONG}
    found: list[Any] = []
    async with (
        httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client,
        client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event: Mapping[str, Any] = json.loads(line.removeprefix("data: "))
                for choice in event["choices"]:
                    if choice.get("logprobs"):
                        pairs = zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True)
                        found += pairs
            if len(found) > 5:
                seen.set()
    return found


@pytest.mark.parametrize("mode", [Mode.MIXED, Mode.DISAGG])
async def test_bits_do_not_depend_on_mode_batch_and_worker(model: SmallModel, mode: Mode) -> None:
    with opened(model.folder, "float32") as llm:
        alone = [chosen(llm, prompt) for prompt in PROMPTS]
    async with local_cluster(model, mode, each=2, attention_backend=UNIFORM) as cluster:
        together = await asyncio.gather(*(answered(cluster, prompt) for prompt in PROMPTS))
        assert together == alone
        for worker in cluster.workers:
            await worker.restart()
        async with asyncio.timeout(60.0):
            while len(cluster.registry.sessions()) < len(cluster.workers):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert [await answered(cluster, prompt) for prompt in PROMPTS] == alone, "after a restart"


async def test_bits_do_not_depend_on_a_migration(model: SmallModel) -> None:
    with opened(model.folder, "float32") as llm:
        alone = chosen(llm, PROMPTS[2], max_tokens=LONG)
    async with local_cluster(model, Mode.DISAGG, each=2, attention_backend=UNIFORM) as cluster:
        seen = asyncio.Event()
        asked = asyncio.create_task(streamed(cluster, PROMPTS[2], seen))
        async with asyncio.timeout(60.0):
            await seen.wait()
        dispatcher: Any = cluster.generation._dispatcher
        assert await dispatcher.migrate_from(decoding(cluster), 30.0) == 1
        assert await asked == alone


async def test_log_probabilities_of_an_answer_are_those_of_the_prompt_that_it_becomes(
    model: SmallModel,
) -> None:
    async with local_cluster(model, Mode.MIXED, attention_backend=UNIFORM) as cluster:
        rollouts = await asyncio.gather(*(answered(cluster, prompt) for prompt in PROMPTS))
        for prompt, rollout in zip(PROMPTS, rollouts, strict=True):
            whole = [*prompt, *(token for token, _ in rollout)]
            body = {"prompt": whole, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
            async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client:
                choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
            scores = choice["prompt_logprobs"][len(prompt) :]
            pairs = zip(rollout, scores, strict=True)
            assert [each[str(token)]["logprob"] for (token, _), each in pairs] == [
                logprob for _, logprob in rollout
            ]
