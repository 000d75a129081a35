"""Log-probabilities of prompts through both frontends equal transformers', in every mode."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import grpc
import httpx
import pytest
import torch

from router.config.choices import Mode
from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel

TOLERANCE = 1e-4
"""Tolerance of float32, of logits up to 20."""
LENGTHS = (1, 2, 17, 129, 300)
"""A chunk has up to 128 tokens."""


class Oracle:
    """Log-probabilities [n - 1, vocab] of a prompt's tokens after the first, by transformers."""

    def __init__(self, small: SmallModel, prompt: Sequence[int]) -> None:
        self.prompt = list(prompt)
        with torch.inference_mode():
            self.rows = small.model(torch.tensor([self.prompt])).logits[0].log_softmax(-1)

    def logprobs(self, tokens: Sequence[int] = ()) -> list[float]:
        """Log-probabilities of the prompt's tokens, and of the first of an answer."""
        known = [*self.prompt, *tokens][1 : 1 + len(self.rows)]
        return [float(row[token]) for row, token in zip(self.rows, known, strict=False)]

    def rank(self, position: int) -> int:
        row = self.rows[position - 1]
        return 1 + int((row > row[self.prompt[position]]).sum())

    def top(self, position: int, count: int) -> list[int]:
        ids: list[int] = self.rows[position - 1].topk(count).indices.tolist()
        return ids


def prompts_of(small: SmallModel) -> list[list[int]]:
    return [list(small.question(n, length=n, max_tokens=1).prompt) for n in LENGTHS]


async def post(cluster: LocalCluster, path: str, body: dict[str, Any], status: int = 200) -> Any:
    async with httpx.AsyncClient(timeout=60.0) as client:
        answer = await client.post(f"{cluster.url}{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_echo_with_logprobs_is_what_lm_eval_asks_for(cluster: LocalCluster, small: SmallModel) -> None:
    """Twice: the second time all prompts are cached, and are computed again for two alternatives."""
    prompts = prompts_of(small)
    body = {"prompt": prompts, "echo": True, "logprobs": 2, "max_tokens": 1, "seed": 1234}
    body["temperature"] = 0
    for _ in range(2):
        choices = (await post(cluster, "/v1/completions", body))["choices"]
        for choice, prompt in zip(choices, prompts, strict=True):
            oracle, found = Oracle(small, prompt), choice["logprobs"]
            new = int(oracle.rows[-1].argmax())
            assert found["token_logprobs"][0] is None
            assert found["top_logprobs"][0] is None
            assert found["token_logprobs"][1:] == pytest.approx(oracle.logprobs([new]), abs=TOLERANCE)
            assert len(found["tokens"]) == len(found["text_offset"]) == len(prompt) + 1
            assert choice["text"].startswith(small.text(prompt).rstrip("\ufffd"))
            for position in range(1, len(prompt)):
                tops = list(found["top_logprobs"][position].values())
                best = oracle.rows[position - 1].topk(2).values.tolist()
                assert tops[: len(best)] == pytest.approx(best, abs=TOLERANCE)


async def test_without_an_answer(cluster: LocalCluster, small: SmallModel) -> None:
    [prompt] = prompts_of(small)[3:4]
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = await post(cluster, "/v1/completions", body)
    [choice] = answer["choices"]
    assert choice["text"] == small.text(prompt)
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(
        Oracle(small, prompt).logprobs(), abs=TOLERANCE
    )
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    plain = await post(cluster, "/v1/completions", {"prompt": prompt, "max_tokens": 0})
    assert (plain["choices"][0]["text"], plain["choices"][0]["logprobs"]) == ("", None)


async def test_a_stream_has_the_prompt_before_the_answer(cluster: LocalCluster, small: SmallModel) -> None:
    [prompt] = prompts_of(small)[2:3]
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 3, "ignore_eos": True}
    body["temperature"] = 0
    whole = (await post(cluster, "/v1/completions", body))["choices"][0]
    async with (
        httpx.AsyncClient(timeout=60.0) as client,
        client.stream("POST", f"{cluster.url}/v1/completions", json=body | {"stream": True}) as stream,
    ):
        lines = [line[6:] async for line in stream.aiter_lines() if line.startswith("data: {")]
    events = [json.loads(line)["choices"][0] for line in lines]
    assert "".join(event["text"] for event in events) == whole["text"]
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [v for e in events if e["logprobs"] for v in e["logprobs"][key]] == whole["logprobs"][key]


async def test_prompt_logprobs_as_vllm_reports_them(cluster: LocalCluster, small: SmallModel) -> None:
    prompts = prompts_of(small)
    body = {"prompt": prompts, "prompt_logprobs": 3, "max_tokens": 2}
    choices = (await post(cluster, "/v1/completions", body))["choices"]
    for choice, prompt in zip(choices, prompts, strict=True):
        oracle = Oracle(small, prompt)
        assert choice["logprobs"] is None
        assert len(choice["prompt_logprobs"]) == len(prompt)
        assert choice["prompt_logprobs"][0] is None
        for position, entry in enumerate(choice["prompt_logprobs"][1:], 1):
            token = prompt[position]
            assert entry.keys() == {str(id) for id in (token, *oracle.top(position, 3))}
            assert next(iter(entry)) == str(token)
            assert entry[str(token)]["rank"] == oracle.rank(position)
            values = {int(id): value["logprob"] for id, value in entry.items()}
            row = oracle.rows[position - 1]
            assert values == pytest.approx({id: float(row[id]) for id in values}, abs=TOLERANCE)
            for rank, id in enumerate(oracle.top(position, 3), 1):
                assert entry[str(id)]["rank"] == rank


async def test_prompt_logprobs_of_a_chat(cluster: LocalCluster, small: SmallModel) -> None:
    messages = [{"role": "user", "content": "the quick brown fox"}]
    prompt = (await post(cluster, "/tokenize", {"messages": messages}))["tokens"]
    answer = await post(
        cluster, "/v1/chat/completions", {"messages": messages, "prompt_logprobs": 0, "max_tokens": 1}
    )
    entries = answer["prompt_logprobs"]
    found = [entry[str(token)]["logprob"] for entry, token in zip(entries[1:], prompt[1:], strict=True)]
    assert found == pytest.approx(Oracle(small, prompt).logprobs(), abs=TOLERANCE)


async def test_over_grpc(cluster: LocalCluster, small: SmallModel) -> None:
    prompt = prompts_of(small)[-1]
    async with grpc.aio.insecure_channel(cluster.target) as channel:
        stub = router_pb2_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        request = router_pb2.GenerateRequest(
            token_ids=router_pb2.TokenIds(ids=prompt),
            sampling=sampling_pb2.SamplingParams(max_tokens=0, prompt_logprobs=2),
        )
        responses = [response async for response in stub.Generate(request)]
    oracle, parts = Oracle(small, prompt), [r.prompt_logprobs for r in responses[:-1]]
    ends = list(itertools.accumulate((len(part.logprobs) for part in parts), initial=1))
    assert [part.position for part in parts] == ends[:-1]
    assert [v for part in parts for v in part.logprobs] == pytest.approx(oracle.logprobs(), abs=TOLERANCE)
    ranks = [rank for part in parts for rank in part.ranks]
    assert ranks == [oracle.rank(position) for position in range(1, len(prompt))]
    tops = [token for part in parts for token in part.top_ids]
    assert tops == [token for position in range(1, len(prompt)) for token in oracle.top(position, 2)]
    assert responses[-1].finish_reason == sampling_pb2.FINISH_REASON_LENGTH
    assert responses[-1].usage.completion_tokens == 0


@pytest.mark.parametrize("mode", Mode)
async def test_a_scored_prompt_uses_the_cached_prefix_that_another_one_has_left(
    small: SmallModel, mode: Mode
) -> None:
    long = list(small.question(7, length=300, max_tokens=1).prompt)
    prompts = [long, long, long[:200], long[:150] + long[:40], long]
    async with local_cluster(small, mode) as cluster:
        for turn, prompt in enumerate(prompts):
            body = {"prompt": prompt, "echo": True, "logprobs": turn % 2, "max_tokens": 3, "temperature": 0}
            answer = await post(cluster, "/v1/completions", body)
            [choice], usage = answer["choices"], answer["usage"]
            oracle, found = Oracle(small, prompt), choice["logprobs"]
            assert found["token_logprobs"][1 : len(prompt)] == pytest.approx(oracle.logprobs(), abs=TOLERANCE)
            for position in range(1, len(prompt)) if turn % 2 else ():
                best = oracle.rows[position - 1].max()
                assert max(found["top_logprobs"][position].values()) == pytest.approx(
                    float(best), abs=TOLERANCE
                )
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            assert bool(cached) == (turn > 0), f"prompt {turn} reused {cached} tokens"
        await cluster.all_pages_back()


@pytest.mark.parametrize("mode", Mode)
async def test_beside_answers_in_a_pool_that_is_too_small(small: SmallModel, mode: Mode) -> None:
    """Prompts that are scored and answers that are decoded compete for pages, and change nothing."""
    questions = [small.question(seed, length=40, max_tokens=80) for seed in range(6)]
    prompts = [list(small.question(50 + n, length=60 + n, max_tokens=1).prompt) for n in range(6)]
    plain: list[dict[str, Any]] = [
        {"prompt": list(q.prompt), "max_tokens": q.max_tokens, "temperature": 0, "ignore_eos": True}
        for q in questions
    ]
    scored: list[dict[str, Any]] = [
        {"prompt": p, "echo": True, "logprobs": 1, "max_tokens": 40, "ignore_eos": True} for p in prompts
    ]
    bodies = [body for pair in zip(plain, scored, strict=True) for body in pair]
    async with local_cluster(small, mode, num_pages=26) as cluster:
        answers = await asyncio.gather(*(post(cluster, "/v1/completions", body) for body in bodies))
        for body, answer in zip(plain, answers[::2], strict=True):
            alone = await post(cluster, "/v1/completions", body)
            assert answer["choices"][0]["text"] == alone["choices"][0]["text"]
        for prompt, answer in zip(prompts, answers[1::2], strict=True):
            found = answer["choices"][0]["logprobs"]["token_logprobs"][1 : len(prompt)]
            assert found == pytest.approx(Oracle(small, prompt).logprobs(), abs=TOLERANCE)
        await cluster.all_pages_back()


async def test_what_is_refused(cluster: LocalCluster) -> None:
    for body, param in (
        ({"prompt": "hi", "prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": "hi", "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": "hi", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt": "hi", "max_tokens": -1}, "max_tokens"),
    ):
        error = (await post(cluster, "/v1/completions", body, status=400))["error"]
        assert error["param"] == param
        assert error["code"] is not None
