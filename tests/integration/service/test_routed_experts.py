"""Routed experts: a replay in transformers with the experts of an answer gives its log-probabilities."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel, save_small_model

LAYERS, PER_TOKEN = 3, 3
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    """The second of its three layers has no experts."""

    def family(**fields: Any) -> PreTrainedModel:
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**fields))

    small = save_small_model(
        tmp_path_factory.mktemp("experts"),
        family,
        num_hidden_layers=LAYERS,
        mlp_only_layers=[1],
        num_experts=8,
        num_experts_per_tok=PER_TOKEN,
        moe_intermediate_size=24,
        head_dim=16,
        norm_topk_prob=True,
        initializer_range=0.05,
    )
    small.model.set_experts_implementation("eager")  # others have no float64
    small.model.double()  # of two float32 results, either may be the nearer one
    return small


@contextmanager
def chosen(model: PreTrainedModel, experts: np.ndarray) -> Iterator[None]:
    """Context in which the routers of `model` choose these experts [tokens, layers, k], in their order."""
    layers = [layer.mlp for layer in model.model.layers]
    hooks = []
    for number, mlp in enumerate(layers):
        router = getattr(mlp, "gate", None)
        if not isinstance(router, Qwen3MoeTopKRouter):
            continue
        wanted = torch.tensor(experts[:, number].astype(np.int64))

        def replace(module: Any, args: Any, output: Any, wanted: torch.Tensor = wanted) -> Any:
            logits = functional.linear(args[0].reshape(-1, module.hidden_dim), module.weight)
            scores = logits.softmax(-1).gather(1, wanted)
            return logits, scores / scores.sum(-1, keepdim=True), wanted

        hooks.append(router.register_forward_hook(replace))
    yield
    for hook in hooks:
        hook.remove()


@torch.inference_mode()
def replayed(small: SmallModel, tokens: list[int], experts: np.ndarray) -> list[float]:
    """Log-probabilities of all tokens but the first."""
    with chosen(small.model, experts):
        rows = small.model(torch.tensor([tokens[:-1]])).logits[0].log_softmax(-1)
    return [float(row[token]) for row, token in zip(rows, tokens[1:], strict=True)]


def check(small: SmallModel, prompt: list[int], choice: dict[str, Any]) -> None:
    tokens = prompt + choice["token_ids"]
    rows = np.load(BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)
    assert rows.shape == (len(tokens) - 1, LAYERS, PER_TOKEN)
    assert rows.dtype == np.uint8
    assert not rows[:, 1].any()
    assert all(len(set(row.tolist())) == PER_TOKEN for row in rows[:, [0, 2]].reshape(-1, PER_TOKEN))
    answered = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    found = replayed(small, tokens, rows)[len(prompt) - 1 :]
    assert found == pytest.approx(answered, abs=TOLERANCE)
    others = replayed(small, tokens, (rows + 1) % 8)[len(prompt) - 1 :]
    assert max(abs(a - b) for a, b in zip(others, answered, strict=True)) > 1e-4


async def post(cluster: LocalCluster, path: str, content: Any) -> Any:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client:
        answer = await client.post(path, json=content)
        assert answer.status_code == 200, answer.text
        return answer.json()


def asked(prompt: list[int], count: int, seed: int) -> dict[str, Any]:
    sampling = {"max_tokens": count, "seed": seed, "logprobs": 0, "ignore_eos": True}
    return {"token_ids": prompt, "sampling_params": sampling}


@pytest.mark.parametrize("mode", Mode)
async def test_a_replay_with_the_experts_of_an_answer_gives_its_log_probabilities(
    experts: SmallModel, mode: Mode
) -> None:
    long = list(experts.question(7, length=150, max_tokens=1).prompt)
    async with local_cluster(experts, mode, return_routed_experts=True) as cluster:
        for turn, prompt in enumerate([long, long, long[:100], long[:70] + long[:30], long[:1]]):
            answer = await post(cluster, "/inference/v1/generate", asked(prompt, 20, turn))
            check(experts, prompt, answer["choices"][0])
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert bool(cached) == (0 < turn < 4)
        listed = await post(cluster, "/skyrl/v1/generate", asked(prompt, 20, turn))
        assert listed["choices"][0]["token_ids"] == answer["choices"][0]["token_ids"]
        written = base64.b64decode(answer["choices"][0]["routed_experts"])
        assert listed["choices"][0]["routed_experts"] == np.load(BytesIO(written)).tolist()
        longer = prompt + answer["choices"][0]["token_ids"]
        again = await post(cluster, "/inference/v1/generate", asked(longer, 5, 1))
        check(experts, longer, again["choices"][0])
        await cluster.all_pages_back()


@pytest.mark.parametrize("mode", Mode)
async def test_through_preemptions(experts: SmallModel, mode: Mode) -> None:
    prompts = [list(experts.question(n, length=40 + n, max_tokens=1).prompt) for n in range(8)]
    async with local_cluster(experts, mode, num_pages=26, return_routed_experts=True) as cluster:
        bodies = [asked(prompt, 80, n) for n, prompt in enumerate(prompts)]
        answers = await asyncio.gather(*(post(cluster, "/inference/v1/generate", body) for body in bodies))
        for prompt, answer in zip(prompts, answers, strict=True):
            check(experts, prompt, answer["choices"][0])
        await cluster.all_pages_back()


async def test_as_sglang_has_them(experts: SmallModel) -> None:
    async with local_cluster(experts, Mode.MIXED, return_routed_experts=True) as cluster:
        sampling = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}
        body = {"input_ids": [5, 6, 7, 8], "sampling_params": sampling, "return_routed_experts": True}
        whole, part = [
            np.frombuffer(base64.b64decode(answer["meta_info"]["routed_experts"]), np.int32)
            for answer in [
                await post(cluster, "/generate", body),
                await post(cluster, "/generate", body | {"routed_experts_start_len": 3}),
            ]
        ]
        assert whole.size == 9 * LAYERS * PER_TOKEN
        assert (whole.reshape(9, LAYERS, PER_TOKEN)[3:].ravel() == part).all()
        assert (
            "routed_experts"
            not in (await post(cluster, "/generate", body | {"return_routed_experts": False}))["meta_info"]
        )


async def test_without_the_flag_they_are_refused_by_name(small: SmallModel) -> None:
    async with (
        local_cluster(small, Mode.MIXED) as cluster,
        httpx.AsyncClient(base_url=cluster.url) as client,
    ):
        for path, prompt in (("/inference/v1/generate", "token_ids"), ("/generate", "input_ids")):
            answer = await client.post(path, json={prompt: [5], "return_routed_experts": True})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "return_routed_experts"
        answer = await client.post("/inference/v1/generate", json={"token_ids": [5]})
        assert "routed_experts" not in answer.json()["choices"][0]
