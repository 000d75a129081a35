"""Tokens in, tokens out, as trainers ask for them: vLLM's and SGLang's generate routes, and their aborts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import jsonschema
import pytest
import torch

from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel

PROMPT = list(range(5, 75))
VLLM, SGLANG = "/inference/v1/generate", "/generate"


@pytest.fixture(params=[Mode.MIXED, Mode.DISAGG], ids=str)
async def cluster(small: SmallModel, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    async with local_cluster(small, request.param) as running:
        yield running


async def post(cluster: LocalCluster, path: str, content: Any, status: int = 200) -> Any:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client:
        answer = await client.post(path, json=content)
        assert answer.status_code == status, answer.text
        return answer.json()


async def events(cluster: LocalCluster, path: str, content: Any) -> list[dict[str, Any]]:
    async with (
        httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client,
        client.stream("POST", path, json={**content, "stream": True}) as response,
    ):
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def check_documented(cluster: LocalCluster, path: str, answer: Any) -> None:
    async with httpx.AsyncClient(base_url=cluster.url) as client:
        document = (await client.get("/openapi.json")).json()
    described = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer, {**described, "components": document["components"]})


@torch.no_grad()
def continued(small: SmallModel, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """What transformers says, greedily, with log-probabilities."""
    answer: list[int] = []
    scores: list[float] = []
    for _ in range(count):
        row = torch.log_softmax(small.model(torch.tensor([[*prompt, *answer]])).logits[0, -1].float(), -1)
        answer.append(int(row.argmax()))
        scores.append(float(row[answer[-1]]))
    return answer, scores


async def test_vllms_route_answers_with_the_tokens_that_transformers_continues_with(
    cluster: LocalCluster, small: SmallModel
) -> None:
    sampling = {"max_tokens": 6, "temperature": 0.0, "logprobs": 2, "prompt_logprobs": 0, "ignore_eos": True}
    body = {"request_id": "mine", "token_ids": PROMPT, "sampling_params": sampling, "cache_salt": "s"}
    answer = await post(cluster, VLLM, body)

    tokens, scores = continued(small, PROMPT, 6)
    (choice,) = answer["choices"]
    assert answer["request_id"] == "mine"
    assert (choice["token_ids"], choice["finish_reason"]) == (tokens, "length")
    content = choice["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [f"token_id:{token}" for token in tokens]
    assert [entry["logprob"] for entry in content] == pytest.approx(scores, abs=1e-4)
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert len(answer["prompt_logprobs"]) == len(PROMPT)
    await check_documented(cluster, VLLM, answer)

    del sampling["prompt_logprobs"]
    streamed = await events(cluster, VLLM, {**body, "stream_options": {"include_usage": True}})
    parts = [event["choices"][0] for event in streamed[:-1]]
    assert [token for part in parts for token in part["token_ids"]] == tokens
    assert parts[-1]["finish_reason"] == "length"
    assert streamed[-1]["usage"]["completion_tokens"] == 6


async def test_sglangs_route_answers_with_tokens_text_and_meta_info(
    cluster: LocalCluster, small: SmallModel
) -> None:
    sampling = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}
    body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True, "rid": "mine"}
    answer = await post(cluster, SGLANG, body | {"logprob_start_len": 60, "top_logprobs_num": 1})

    tokens, scores = continued(small, PROMPT, 6)
    meta = answer["meta_info"]
    assert (answer["output_ids"], answer["text"]) == (tokens, small.tokenizer.decode(tokens))
    assert (meta["id"], meta["finish_reason"]) == ("mine", {"type": "length", "length": 6})
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(PROMPT), 6)
    logprobs = meta["output_token_logprobs"]
    assert [token for _, token, _ in logprobs] == tokens
    assert [value for value, _, _ in logprobs] == pytest.approx(scores, abs=1e-4)
    assert [token for _, token, _ in meta["input_token_logprobs"]] == PROMPT[60:]
    assert meta["input_token_logprobs"][0][0] is None
    assert all(value is not None for value, _, _ in meta["input_token_logprobs"][1:])
    assert len(meta["input_top_logprobs"]) == len(PROMPT) - 60
    await check_documented(cluster, SGLANG, answer)

    streamed = await events(cluster, SGLANG, body)
    assert streamed[-1]["output_ids"] == tokens
    assert streamed[-1]["meta_info"]["input_token_logprobs"] == []
    assert [len(event["output_ids"]) for event in streamed] == sorted(
        len(event["output_ids"]) for event in streamed
    )


async def test_several_prompts_get_a_list(cluster: LocalCluster, small: SmallModel) -> None:
    sampling = {"max_new_tokens": 2, "temperature": 0.0, "ignore_eos": True}
    both = await post(
        cluster, SGLANG, {"input_ids": [PROMPT, PROMPT[:9]], "sampling_params": sampling, "rid": "two"}
    )
    assert [one["output_ids"] for one in both] == [
        continued(small, prompt, 2)[0] for prompt in (PROMPT, PROMPT[:9])
    ]
    assert [one["meta_info"]["id"] for one in both] == ["two-0", "two-1"]
    text = await post(cluster, SGLANG, {"text": "abc", "sampling_params": sampling})
    assert len(text["output_ids"]) == 2


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (VLLM, {"token_ids": []}, "token_ids"),
        (VLLM, {"token_ids": [10**6]}, "token_ids"),
        (VLLM, {"token_ids": [1], "features": {"a": 1}}, "features"),
        (VLLM, {"token_ids": [1], "sampling_params": {"bad_words": ["x"]}}, "sampling_params.bad_words"),
        (SGLANG, {"input_ids": ["a"]}, "input_ids"),
        (SGLANG, {"text": "a", "input_ids": [1]}, "text"),
        (SGLANG, {"input_ids": [[1], [2]], "stream": True}, "stream"),
        (SGLANG, {"text": "a", "image_data": "x"}, "image_data"),
    ],
)
async def test_what_is_not_possible_is_refused_by_name(
    cluster: LocalCluster, path: str, body: dict[str, Any], param: str
) -> None:
    error = (await post(cluster, path, body, 400))["error"]
    assert param in error["param"]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/abort_request", {"rid": "long"}),
        ("/abort_request", {"abort_all": True}),
        ("/abort_requests", {"request_ids": ["long"]}),
        ("/abort_requests", {}),
    ],
)
async def test_an_abort_ends_a_running_request_with_its_tokens(
    cluster: LocalCluster, path: str, asked: dict[str, Any]
) -> None:
    sampling = {"max_tokens": 1500, "ignore_eos": True}
    body = {"token_ids": PROMPT, "sampling_params": sampling, "request_id": "long"}
    running = asyncio.create_task(post(cluster, VLLM, body))
    async with asyncio.timeout(20.0):
        while not (await post(cluster, path, asked))["aborted"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    (choice,) = (await running)["choices"]
    assert choice["finish_reason"] == "abort"
    assert len(choice["token_ids"]) < 1500
    nothing = await post(cluster, path, asked)
    assert nothing == {"success": True, "aborted": 0}
    await check_documented(cluster, path, nothing)
