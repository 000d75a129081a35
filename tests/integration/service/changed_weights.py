"""A model with other values of the same shape, what it says, and requests around an update."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.faults.support.local_cluster import LocalCluster
from tests.faults.support.small_model import SmallModel

KEY = "an-admin-key-of-a-test"
ADMIN = {"authorization": f"Bearer {KEY}"}
PROMPT = list(range(5, 75))


@dataclass(frozen=True)
class Changed:
    """The model with other values of the same shape."""

    folder: Path
    model: Any


def changed_model(small: SmallModel, folder: Path) -> Changed:
    """Write other values of the model to a new folder."""
    shutil.copytree(small.folder, folder)
    values = load_file(folder / "model.safetensors")
    torch.manual_seed(1)
    values = {
        name: value + 0.3 * torch.randn_like(value) if value.dim() > 1 else value
        for name, value in values.items()
    }
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    return Changed(folder, type(small.model).from_pretrained(folder).eval())


@torch.no_grad()
def continued(model: Any, tokens: Sequence[int], count: int) -> list[int]:
    """What transformers says, greedily."""
    answer: list[int] = []
    for _ in range(count):
        answer.append(int(model(torch.tensor([[*tokens, *answer]])).logits[0, -1].argmax()))
    return answer


async def ask(
    cluster: LocalCluster, count: int, prompt: Sequence[int] = PROMPT, **more: Any
) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client:
        answer = await client.post("/v1/completions", json=body(prompt, count, **more))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def body(prompt: Sequence[int], count: int, **more: Any) -> dict[str, Any]:
    fields = {"model": "small", "prompt": list(prompt), "max_tokens": count, "temperature": 0.0}
    return {**fields, "ignore_eos": True, "return_token_ids": True, **more}


def ids_of(answer: dict[str, Any]) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def check_documented(cluster: LocalCluster, path: str, answer: Any, method: str = "post") -> None:
    """Compare an answer with /openapi.json."""
    async with httpx.AsyncClient(base_url=cluster.url) as client:
        document = (await client.get("/openapi.json")).json()
    described = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer, {**described, "components": document["components"]})


async def post(cluster: LocalCluster, path: str, content: Any = None) -> httpx.Response:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0, headers=ADMIN) as client:
        return await client.post(path, json=content) if content is not None else await client.post(path)


class Streamed:
    """An answer that is read as it comes."""

    def __init__(self, cluster: LocalCluster, count: int, prompt: Sequence[int] = PROMPT) -> None:
        self.ids: list[int] = []
        self.finish: str | None = None
        self.versions: list[dict[str, Any]] = []
        self._task = asyncio.create_task(self._read(cluster, count, prompt))

    async def _read(self, cluster: LocalCluster, count: int, prompt: Sequence[int]) -> None:
        fields = body(prompt, count, stream=True, return_weight_versions=True)
        async with (
            httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client,
            client.stream("POST", "/v1/completions", json=fields) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"] or [{}]
                    self.ids += choice.get("token_ids") or []
                    self.versions += choice.get("weight_versions", [])
                    self.finish = choice.get("finish_reason") or self.finish

    async def has(self, count: int) -> None:
        async with asyncio.timeout(20.0):
            while len(self.ids) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def ended(self) -> None:
        await self._task


@torch.no_grad()
def spans_agree(
    answer: Sequence[int], spans: Sequence[dict[str, Any]], models: dict[str, Any], prompt: Sequence[int]
) -> bool:
    """Whether each span is what its weights say greedily after all tokens before it, and no token lacks
    one. One pass of each model, as they see the whole answer."""
    whole = torch.tensor([[*prompt, *answer]])
    passes = {version: model(whole).logits[0, len(prompt) - 1 : -1] for version, model in models.items()}
    ends = [0, *(span["end"] for span in spans)]
    return [span["start"] for span in spans] == ends[:-1] and all(
        is_most_likely(passes[span["version"]][at], answer[at])
        for span in spans
        for at in range(span["start"], span["end"])
    )


def is_most_likely(logits: Tensor, token: int) -> bool:
    """Whether `token` has the largest logit, up to rounding: of thousands of tokens, one has a second choice
    within 1e-5. `logits`: [vocabulary]."""
    return bool(logits[token] > logits.max() - 1e-4)


@torch.no_grad()
def agrees(answer: list[int], prompt: list[int], order: list[Any]) -> bool:
    """Whether the weights of `order`, one after the other and then again, have computed the answer."""
    at, turn, since = 0, 0, 0
    while at < len(answer):
        logits = order[turn % 2](torch.tensor([[*prompt, *answer[:at]]])).logits[0, -1]
        if is_most_likely(logits, answer[at]):
            at, since = at + 1, 0
        elif since:
            return False
        else:
            turn, since = turn + 1, 1
    return turn <= 6
