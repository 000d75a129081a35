"""Decisions equal transformers' last row, and do not depend on mode, company, worker or kind of KV."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import torch
from openai import AsyncOpenAI
from transformers import PreTrainedModel

from router.command.client.batch import run as batch
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.integration.models.kinds_of_kv import KINDS, windows

STATE = "The parcel came late, and its box was wet.\n" * 12
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "name": "late", "instructions": "The parcel was late."},
    {
        "type": "choice",
        "instructions": "Which team answers?",
        "choices": [
            {"value": "billing", "description": "Invoices"},
            {"value": "delivery"},
            {"value": True},
            {"value": "true"},
        ],
    },
    {
        "type": "score",
        "name": "anger",
        "instructions": "How angry is the customer?",
        "levels": [{"label": "calm"}, {"label": "annoyed", "description": "a little"}, {"label": "furious"}],
    },
]
TOLERANCE = 1e-5


async def post(cluster: LocalCluster, path: str, body: dict[str, Any], status: int = 200) -> Any:
    async with httpx.AsyncClient(timeout=60.0) as client:
        answer = await client.post(f"{cluster.url}{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def decide(cluster: LocalCluster, questions: list[dict[str, Any]], state: str = STATE) -> Any:
    return await post(cluster, "/v1/decisions", {"input": state, "questions": questions})


def options_of(small: SmallModel, question: str, labels: str) -> tuple[list[float], float]:
    """Probabilities of `labels` after a question about STATE, and their mass, by transformers."""
    prompt = f"user: {STATE.rstrip()}\n\n{question}\nassistant:"
    [ids] = small.tokenizer.encode_batch([prompt], add_special_tokens=False)
    spaced = small.tokenizer.tokens_after(prompt, tuple(f" {label}" for label in labels))
    plain = small.tokenizer.tokens_after(prompt, tuple(labels))
    tokens = plain if None in spaced else spaced
    with torch.inference_mode():
        row = small.model(torch.tensor([ids])).logits[0, -1].softmax(-1)[list(tokens)]
    mass = float(row.sum())
    return (row / mass).tolist(), mass


async def test_probabilities_are_those_of_transformers(cluster: LocalCluster, small: SmallModel) -> None:
    answer = await decide(cluster, QUESTIONS)
    predicate, choice, score = answer["answers"]
    asked = 'Is the following true of the above? "The parcel was late."\nAnswer with A or B alone.'
    shares, mass = options_of(small, asked, "AB")
    assert predicate["probability"] == pytest.approx(shares[0], abs=TOLERANCE)
    assert predicate["x_label_mass"] == pytest.approx(mass, abs=TOLERANCE)
    assert (predicate["type"], predicate["name"]) == ("predicate", "late")
    asked = (
        "Which team answers?\nA. billing: Invoices\nB. delivery\nC. true\nD. true\n"
        "Answer with the letter of one option alone."
    )
    shares, mass = options_of(small, asked, "ABCD")
    assert [each["value"] for each in choice["probabilities"]] == ["billing", "delivery", True, "true"]
    assert [each["probability"] for each in choice["probabilities"]] == pytest.approx(shares, abs=TOLERANCE)
    assert choice["confidence"] == pytest.approx(max(shares) * mass, abs=TOLERANCE)
    assert choice["choice"] == ["billing", "delivery", True, "true"][shares.index(max(shares))]
    asked = (
        "How angry is the customer?\nA. calm\nB. annoyed: a little\nC. furious\n"
        "Answer with the letter of one level alone."
    )
    shares, _ = options_of(small, asked, "ABC")
    assert score["score"] == pytest.approx(shares[1] + 2 * shares[2], abs=3 * TOLERANCE)
    assert [each["label"] for each in score["probabilities"]] == ["calm", "annoyed", "furious"]
    assert answer["usage"]["output_tokens"] == 0


async def test_the_client_of_openai(cluster: LocalCluster) -> None:
    async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none") as client:
        decision = await client.decisions.create(
            model="small",
            input=[
                {"role": "developer", "content": "Judge parcels.", "type": "message"},
                {
                    "role": "user",
                    "type": "message",
                    "content": [
                        {"type": "input_text", "text": STATE},
                        {"type": "input_json", "data": {"days": 9}},
                    ],
                },
            ],
            questions=QUESTIONS,  # type: ignore[arg-type]
        )
    predicate, choice, score = decision.answers
    assert predicate.type == "predicate"
    assert 0.0 <= predicate.probability <= 1.0
    assert choice.type == "choice"
    assert sum(each.probability for each in choice.probabilities) == pytest.approx(1.0)
    assert score.type == "score"
    assert [each.value for each in score.probabilities] == [0, 1, 2]
    assert decision.usage.input_tokens > 3 * 250


async def test_a_cached_state_is_not_computed_again(cluster: LocalCluster) -> None:
    first = await decide(cluster, QUESTIONS[:1])
    second = await decide(cluster, [*QUESTIONS, *QUESTIONS])
    assert first["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > 6 * len(STATE) // 4
    assert second["answers"][0] == second["answers"][3]


@pytest.mark.parametrize("kind", [None, *KINDS])
async def test_company_mode_and_worker_change_no_answer(
    tmp_path: Path, small: SmallModel, kind: Callable[..., PreTrainedModel] | None
) -> None:
    """Together, one by one, while answers are decoded, in every mode.

    Latents and states are multiplied by kernels whose rounding depends on the number of rows.
    """
    model = small if kind is None else save_small_model(tmp_path, kind)
    found = []
    for mode in Mode:
        async with local_cluster(model, mode) as cluster:
            plain = {"prompt": [5] * 40, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
            beside = asyncio.create_task(post(cluster, "/v1/completions", plain))
            together = (await decide(cluster, QUESTIONS))["answers"]
            await beside
            again = (await decide(cluster, QUESTIONS))["answers"]
            alone = [(await decide(cluster, [question]))["answers"][0] for question in QUESTIONS]
            found += [together, again, alone]
            await cluster.all_pages_back()
    if kind in (None, windows):
        assert all(each == found[0] for each in found)
    for each in found:
        assert _numbers(each) == pytest.approx(_numbers(found[0]), rel=1e-4, abs=1e-6)


def _numbers(answers: list[Any]) -> list[float]:
    predicate, choice, score = answers
    shares = [option["probability"] for answer in (choice, score) for option in answer["probabilities"]]
    return [predicate["probability"], *shares, *(answer["x_label_mass"] for answer in answers)]


async def test_the_shape_of_typesafe(cluster: LocalCluster) -> None:
    questions = {
        "late": {"type": "noul", "instructions": "The parcel was late.", "criteria": {"true": "after noon"}},
        "team": {"type": "choice", "criteria": {"billing": "Invoices", "delivery": None}},
        "anger": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "furious"]},
    }
    answer = await post(cluster, "/v1/systemone", {"state": {"text": STATE}, "questions": questions})
    late, team, anger = (answer["answers"][name] for name in questions)
    assert 0.0 <= late["noul"] <= 1.0
    assert team["choice"] == max(team["probabilities"], key=team["probabilities"].get)
    assert anger["legend"] == {"0": "calm", "1": "furious"}
    assert anger["score"] == pytest.approx(anger["probabilities"]["1"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/decisions", {"input": STATE, "questions": QUESTIONS, "timings": True}),
        ("/v1/systemone", {"state": "x", "questions": {"a": {"type": "noul"}}}),
        ("/v1/score", {"query": "x", "items": ["y", "z"], "label_token_ids": [7, 8]}),
        ("/generative_scoring", {"query": [7], "items": [[8]], "label_token_ids": [9, 9]}),
    ],
)
async def test_answers_are_as_documented(cluster: LocalCluster, path: str, body: dict[str, Any]) -> None:
    answer = await post(cluster, path, body)
    async with httpx.AsyncClient() as client:
        document = (await client.get(f"{cluster.url}/openapi.json")).json()
    about = document["paths"][path]["post"]
    for schema, value in (
        (about["requestBody"]["content"]["application/json"]["schema"], body),
        (about["responses"]["200"]["content"]["application/json"]["schema"], answer),
    ):
        jsonschema.validate(value, {**schema, "components": document["components"]})
    if body.get("timings"):
        assert [each["prefill_s"] > 0.0 for each in answer["timings"]] == [True] * len(QUESTIONS)
        assert all(0.0 < each["read_s"] <= each["e2e_s"] for each in answer["timings"])


async def test_scores_of_label_tokens(cluster: LocalCluster, small: SmallModel) -> None:
    items, labels = [[7, 8, 9], [30, 31]], [40, 41, 42]
    body = {"query": [11, 12, 13, 14], "items": items, "label_token_ids": labels}
    plain = await post(cluster, "/v1/score", body)
    soft = await post(cluster, "/v1/score", body | {"apply_softmax": True, "item_first": True})
    first = await post(cluster, "/generative_scoring", body)
    for index, item in enumerate(items):
        with torch.inference_mode():
            row = small.model(torch.tensor([[11, 12, 13, 14, *item]])).logits[0, -1].softmax(-1)[labels]
            other = small.model(torch.tensor([[*item, 11, 12, 13, 14]])).logits[0, -1].softmax(-1)[labels]
        assert plain["scores"][index] == pytest.approx(row.tolist(), abs=TOLERANCE)
        assert plain["x_label_mass"][index] == pytest.approx(float(row.sum()), abs=TOLERANCE)
        assert soft["scores"][index] == pytest.approx((other / other.sum()).tolist(), abs=TOLERANCE)
        assert first["data"][index]["score"] == pytest.approx(float(row[0] / row.sum()), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"type": "choice", "instructions": "x", "choices": [{"value": "a"}]}, "at least 2"),
        ({"type": "choice", "instructions": "x", "choices": [{"value": "a"}] * 2}, "same value"),
        (
            {"type": "choice", "instructions": "x", "choices": [{"value": str(n)} for n in range(255)]},
            "255 labels",
        ),
        ({"type": "guess", "instructions": "x"}, "type"),
        ({"type": "predicate", "instructions": [{"type": "input_image", "image_url": "x"}]}, "input_image"),
    ],
)
async def test_what_cannot_be_asked_is_refused(
    cluster: LocalCluster, question: dict[str, Any], says: str
) -> None:
    answer = await post(cluster, "/v1/decisions", {"input": "x", "questions": [question]}, 400)
    assert says in answer["error"]["message"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_log_probabilities_of_named_tokens_with_each_generated_one(
    cluster: LocalCluster, small: SmallModel, temperature: float
) -> None:
    """128 of them, whatever --max-logprobs is; in every mode, beside requests without any."""
    prompt, ids = list(small.question(3, length=30, max_tokens=1).prompt), list(range(3, 131))
    body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, "temperature": temperature, "seed": 7}
    named, plain = await asyncio.gather(
        post(cluster, "/v1/completions", body | {"logprob_token_ids": ids, "return_token_ids": True}),
        post(cluster, "/v1/completions", body | {"logprobs": 2, "return_token_ids": True}),
    )
    [choice], [other] = named["choices"], plain["choices"]
    assert choice["token_ids"] == other["token_ids"]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(
        other["logprobs"]["token_logprobs"], abs=1e-4
    )
    with torch.inference_mode():
        rows = small.model(torch.tensor([[*prompt, *choice["token_ids"]]])).logits[0].log_softmax(-1)
    for place, found in enumerate(choice["logprobs"]["top_logprobs"]):
        expected = rows[len(prompt) - 1 + place]
        names = {small.tokenizer.token_bytes(token): float(expected[token]) for token in ids}
        assert len(found) >= len(set(names))
        values = sorted(found.values())
        wanted = {*names.values(), float(expected[choice["token_ids"][place]])}
        assert values == pytest.approx(sorted(wanted), abs=1e-4)


async def test_named_tokens_of_a_chat(cluster: LocalCluster) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "logprob_token_ids": [5, 4]}
    answer = await post(cluster, "/v1/chat/completions", body)
    for token in answer["choices"][0]["logprobs"]["content"]:
        assert len(token["top_logprobs"]) == 2
    refused = await post(cluster, "/v1/chat/completions", body | {"logprob_token_ids": [5] * 129}, 400)
    assert refused["error"]["param"].startswith("logprob_token_ids")
    both = body | {"logprobs": True, "top_logprobs": 2}
    assert (await post(cluster, "/v1/chat/completions", both, 400))["error"]["param"] == "logprob_token_ids"


@pytest.mark.parametrize("mode", [Mode.DISAGG, Mode.ADAPTIVE])
async def test_reads_of_a_lost_worker_are_read_on_another(small: SmallModel, mode: Mode) -> None:
    questions = [{**QUESTIONS[0], "instructions": f"Parcel {n} was late."} for n in range(12)]
    state = STATE[:1200]
    async with local_cluster(small, mode) as cluster:
        expected = (await decide(cluster, questions, state))["answers"]
    async with local_cluster(small, mode) as cluster:
        body = {"input": state, "questions": questions, "timings": True}
        asking = asyncio.create_task(post(cluster, "/v1/decisions", body))
        sessions = cluster.registry.sessions()
        while not (busy := [session for session in sessions if session.load.requests]):  # noqa: ASYNC110
            await asyncio.sleep(0)
        [lost] = [worker for worker in cluster.workers if worker.worker_id == busy[0].worker_id]
        await lost.host.stop()
        answer = await asking
        assert answer["answers"] == expected
        assert answer["timings"][-1]["prefill_worker"] != lost.worker_id


async def test_a_batch_of_decisions(cluster: LocalCluster, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"input": STATE, "questions": QUESTIONS}
    rows = [{"custom_id": str(n), "method": "POST", "url": "/v1/decisions", "body": body} for n in range(3)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert await asyncio.to_thread(batch, [str(source), str(output), "--url", cluster.url]) == 0
    answers = [json.loads(line)["response"]["body"]["answers"] for line in output.read_text().splitlines()]
    assert answers == [(await decide(cluster, QUESTIONS))["answers"]] * 3


async def test_all_questions_go_to_one_worker_that_computes_the_state_once(small: SmallModel) -> None:
    """Also while that is being computed, and whatever is cached elsewhere."""
    questions = [{**QUESTIONS[0], "instructions": f"Parcel {n} was late."} for n in range(40)]
    async with local_cluster(small, Mode.ADAPTIVE) as cluster:
        body = {"input": STATE, "questions": questions, "timings": True}
        answer = await post(cluster, "/v1/decisions", body)
        assert len({each["prefill_worker"] for each in answer["timings"]}) == 1
        computed = sum(each.prompt_tokens for each in await cluster.stats())
        prompts = answer["usage"]["input_tokens"]
        assert computed < prompts / 3
        await cluster.all_pages_back()
