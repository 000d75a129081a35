"""Receipts: every API and mode gives the same one, and none of what it depends on can change unnoticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import jsonschema

from baton import LLM, SamplingParams
from router.api.generation.audit.receipts import Presented, page_chain
from router.config.choices import Mode
from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from rpc.channel import connect
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel

WORDS = "What is the weather like? " * 4
SAMPLED = {"temperature": 0.8, "seed": 11, "top_p": 1.0}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 24},
    "/v1/responses": {"input": WORDS, "max_output_tokens": 24},
    "/v1/messages": {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 24},
    "/v1/completions": {"max_tokens": 24},
    "/inference/v1/generate": {"sampling_params": {"max_tokens": 24}},
    "/generate": {"sampling_params": {"max_new_tokens": 24}},
}
TOKENS_IN = {"/inference/v1/generate": "token_ids", "/generate": "input_ids"}


def prompt_of(small: SmallModel) -> list[int]:
    text = small.tokenizer.render([{"role": "user", "content": WORDS}], {})
    return small.tokenizer.encode_batch([text], add_special_tokens=False)[0]


def body_of(path: str, small: SmallModel, **more: Any) -> dict[str, Any]:
    if "generate" in path:
        name, params = TOKENS_IN[path], {**BODIES[path]["sampling_params"], **more}
        return {name: prompt_of(small), "sampling_params": params, "receipt": True}
    body = {"model": "small", "receipt": True, **BODIES[path], **more}
    return body | {"prompt": prompt_of(small)} if path == "/v1/completions" else body


async def post(cluster: LocalCluster, path: str, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client:
        return await client.post(path, json=body)


async def streamed(cluster: LocalCluster, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with (
        httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client,
        client.stream("POST", path, json=body | {"stream": True}) as response,
    ):
        return [
            json.loads(line.removeprefix("data: "))
            async for line in response.aiter_lines()
            if line.startswith("data: {")
        ]


def found(value: Any) -> list[dict[str, Any]]:
    """All receipts within an answer or its events."""
    if isinstance(value, dict):
        own = [value["receipt"]] if "receipt" in value else []
        return own + [each for name, part in value.items() if name != "receipt" for each in found(part)]
    return [each for part in value for each in found(part)] if isinstance(value, list) else []


async def receipt_of(cluster: LocalCluster, path: str, small: SmallModel, **more: Any) -> dict[str, Any]:
    answer = await post(cluster, path, body_of(path, small, **more))
    assert answer.status_code == 200, answer.text
    (receipt,) = found(answer.json())
    return receipt


async def through_grpc(cluster: LocalCluster, small: SmallModel, **fields: Any) -> dict[str, Any]:
    request = router_pb2.GenerateRequest(
        token_ids=router_pb2.TokenIds(ids=prompt_of(small)),
        sampling=sampling_pb2.SamplingParams(max_tokens=24, **fields),
        receipt="tokens",
    )
    async with connect(cluster.target) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        responses = [response async for response in stub.Generate(request)]
    assert not any(response.receipt for response in responses[:-1])
    return dict(json.loads(responses[-1].receipt))


async def test_all_apis_and_modes_give_the_same_receipt(small: SmallModel, tmp_path: Path) -> None:
    receipts = []
    for mode in Mode:
        async with local_cluster(small, mode) as cluster:
            for path in BODIES:
                # Anthropic's API has no seed: greedy, whose receipts have none.
                more = {"temperature": 0.0, "top_p": 1.0}
                receipts.append(await receipt_of(cluster, path, small, **more))
                receipts += found(await streamed(cluster, path, body_of(path, small, **more)))
            receipts.append(await through_grpc(cluster, small, temperature=0.0, top_p=1.0))
    shutil.copytree(small.folder, tmp_path / "small")  # a model is named after its folder
    with LLM(str(tmp_path / "small"), device="cpu", dtype="float32", max_model_len=512) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=24)
        (answer,) = llm.generate([prompt_of(small)], params, receipt=True, progress=False)
    offline = answer.outputs[0].receipt
    assert offline is not None
    assert len(receipts) == 39
    assert all(receipt == receipts[0] for receipt in receipts)
    assert offline == receipts[0]
    presented = Presented.read(receipts[0])
    assert presented.changes() == []
    assert presented.receipt.prompt.count == len(prompt_of(small))
    assert "seed" not in presented.receipt.sampling


async def test_sampled_answers_have_their_seed_and_each_completion_its_own(small: SmallModel) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        path = "/v1/completions"
        answer = await post(cluster, path, body_of(path, small, **SAMPLED, n=3))
        receipts = found(answer.json())
        one = await receipt_of(cluster, path, small, **SAMPLED)
        drawn = await receipt_of(cluster, path, small, temperature=0.8)
        again = await receipt_of(cluster, path, small, temperature=0.8, seed=int(drawn["sampling"]["seed"]))
    assert receipts[0]["sampling"]["seed"] == "11"
    assert len({receipt["sampling"]["seed"] for receipt in receipts}) == 3
    assert one == receipts[0]
    assert drawn == again, "the seed that the server drew"


async def test_a_receipt_of_digests_contains_no_tokens(small: SmallModel) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        whole = await receipt_of(cluster, "/v1/completions", small, **SAMPLED)
        short = await receipt_of(cluster, "/v1/completions", small, **SAMPLED, receipt="digests")
        wrong = await post(cluster, "/v1/completions", body_of("/v1/completions", small, receipt="all"))
        none = await post(cluster, "/v1/completions", body_of("/v1/completions", small, receipt=False))
    assert short == {name: value for name, value in whole.items() if not name.endswith("token_ids")}
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "receipt"
    assert found(none.json()) == []
    tokens = [*whole["prompt_token_ids"], *whole["token_ids"]]
    assert tuple(whole["pages"]) == page_chain(tokens, b"")


async def test_answers_with_receipts_are_documented(small: SmallModel) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        async with httpx.AsyncClient(base_url=cluster.url) as client:
            document = (await client.get("/openapi.json")).json()
        for path in BODIES:
            answer = await post(cluster, path, body_of(path, small))
            described = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
            jsonschema.validate(answer.json(), {**described["schema"], "components": document["components"]})


async def test_a_server_that_does_not_know_its_weights_refuses_receipts(small: SmallModel) -> None:
    async with local_cluster(small, Mode.MIXED, identify_weights=False) as cluster:
        refused = await post(cluster, "/v1/completions", body_of("/v1/completions", small))
    assert refused.status_code == 400
    assert "--identify-weights" in refused.json()["error"]["message"]


async def test_stops_and_salts_are_part_of_it(small: SmallModel) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:

        async def one(**more: Any) -> dict[str, Any]:
            return await receipt_of(cluster, "/v1/completions", small, temperature=0.0, **more)

        plain, salted = await one(), await one(cache_salt="tenant")
        text = small.text(plain["token_ids"])
        stopped = await one(stop=[text[3:6]])
    assert salted["namespace"] != plain["namespace"] == ""
    assert salted["pages"] != plain["pages"]
    assert salted["token_ids"] == plain["token_ids"]
    assert stopped["sampling"]["stop"] == [text[3:6]]
    assert stopped["finish"] == "stop"
    assert stopped["token_ids"] == plain["token_ids"][: len(stopped["token_ids"])]
