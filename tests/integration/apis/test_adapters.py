"""Adapters in every API: loaded by the routes of vLLM and SGLang, named as a model or beside it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from common.origin import activation_key, namespace_of
from router.api.access import ApiKeys
from rpc.router_client import CallFailed, RouterClient
from tests.integration.adapting import adapting, give
from tests.integration.apis.tool_answers import ASK, BERN, CALL, TOOL, answer_with
from tests.integration.fake_cluster import service
from tests.integration.fake_worker import decode_worker, digest_of
from tests.integration.frontends import Frontends, open_frontends

KEY = "admin-key-0123456789"
ADMIN = {"authorization": f"Bearer {KEY}"}
HI = [{"role": "user", "content": "hi"}]
APIS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/chat/completions", {"messages": HI}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"messages": HI, "max_tokens": 5}),
]
SQL = {"lora_name": "sql", "lora_path": "/sql"}


@pytest_asyncio.fixture
async def adapted(folder: Path) -> AsyncIterator[Frontends]:
    worker = decode_worker("d")
    give([worker], "/sql", "one")
    async with (
        service(worker) as served,
        adapting(served, base="small") as adapters,
        open_frontends(folder, admin_keys=ApiKeys({KEY: "admin"}), adapters=adapters) as opened,
    ):
        yield opened


@pytest_asyncio.fixture
async def client(adapted: Frontends) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=adapted.url, timeout=30) as client:
        yield client


async def test_the_routes_of_vllm_and_their_statuses(client: httpx.AsyncClient) -> None:
    async def post(path: str, **body: Any) -> tuple[int, str]:
        answer = await client.post(path, json=body, headers=ADMIN)
        return answer.status_code, answer.text

    assert await post("/v1/load_lora_adapter", **SQL) == (
        200,
        "Success: LoRA adapter 'sql' added successfully.",
    )
    status, text = await post("/v1/load_lora_adapter", **SQL)
    assert status == 400
    assert "loaded already" in text
    status, text = await post("/v1/load_lora_adapter", lora_name="x", lora_path="/none")
    assert status == 404
    assert "d: /none: No such file" in text
    assert (await post("/v1/load_lora_adapter", **SQL, load_inplace=True))[0] == 200
    assert await post("/v1/unload_lora_adapter", lora_name="sql") == (
        200,
        "Success: LoRA adapter 'sql' removed successfully.",
    )
    assert (await post("/v1/unload_lora_adapter", lora_name="sql"))[0] == 404


async def test_the_routes_of_sglang(client: httpx.AsyncClient) -> None:
    loaded = await client.post("/load_lora_adapter", json=SQL, headers=ADMIN)
    assert loaded.json() == {"success": True, "error_message": "", "loaded_adapters": {"sql": "/sql"}}
    gone = await client.post("/unload_lora_adapter", json={"lora_name": "sql"}, headers=ADMIN)
    assert gone.json()["loaded_adapters"] == {}


async def test_they_take_a_key_of_their_own(folder: Path, client: httpx.AsyncClient) -> None:
    for headers in ({}, {"authorization": "Bearer another-key-0123"}):
        refused = await client.post("/v1/load_lora_adapter", json=SQL, headers=headers)
        assert refused.status_code == 401
    async with open_frontends(folder) as closed, httpx.AsyncClient(base_url=closed.url) as other:
        refused = await other.post("/v1/load_lora_adapter", json=SQL, headers=ADMIN)
        assert refused.status_code == 403
        assert "--admin-key-file" in refused.text
    keys = ApiKeys({KEY: "admin"})
    async with (
        open_frontends(folder, admin_keys=keys) as without,
        httpx.AsyncClient(base_url=without.url) as other,
    ):
        refused = await other.post("/v1/load_lora_adapter", json=SQL, headers=ADMIN)
        assert refused.status_code == 501
        assert "--enable-lora" in refused.text


@pytest.mark.parametrize(("path", "body"), APIS)
async def test_an_adapter_is_a_model_of_every_api(
    adapted: Frontends, client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    await client.post("/v1/load_lora_adapter", json=SQL, headers=ADMIN)
    for model in ("sql", "small:sql", "small"):
        answer = await client.post(path, json=body | {"model": model})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model.removeprefix("small:")
    named, also, base = (call.request for call in adapted.dispatcher.calls)
    assert named.adapter == also.adapter == "sql"
    assert named.adapter_digest == also.adapter_digest == digest_of("one")
    assert named.namespace == also.namespace == namespace_of(adapter=digest_of("one"))
    assert (base.adapter, base.adapter_digest, base.namespace) == ("", b"", b"")
    for model in ("none", "small:none"):
        assert (await client.post(path, json=body | {"model": model})).status_code == 404


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_tool_calls_of_an_adapter(adapted: Frontends, client: httpx.AsyncClient, choice: str) -> None:
    """The tools are in its prompt, their grammar holds it, and its calls are found in the answer."""
    await client.post("/v1/load_lora_adapter", json=SQL, headers=ADMIN)
    answer_with(adapted, CALL)
    body = {"messages": ASK, "tools": [TOOL], "tool_choice": choice}
    answer = await client.post("/v1/chat/completions", json=body | {"model": "sql"})
    [call] = answer.json()["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("weather", BERN)
    [asked] = adapted.dispatcher.calls
    assert (asked.request.adapter, asked.request.adapter_digest) == ("sql", digest_of("one"))
    assert asked.sampling.HasField("grammar") == (choice == "required")
    prompt = adapted.generation.tokenizer.decode(asked.prompt)
    assert '"description": "Forecast."' in prompt


async def test_the_field_of_sglang_and_the_grpc_api(adapted: Frontends, client: httpx.AsyncClient) -> None:
    await client.post("/v1/load_lora_adapter", json=SQL, headers=ADMIN)
    answer = await client.post("/v1/completions", json={"prompt": "hi", "lora_path": "sql"})
    assert answer.json()["model"] == "sql"
    assert (await client.post("/v1/completions", json={"prompt": "hi", "lora_path": "x"})).status_code == 404
    async with RouterClient(adapted.target, model="sql") as grpc:
        async for _ in grpc.generate("hi", max_tokens=3):
            pass
    async with RouterClient(adapted.target, model="none") as grpc:
        with pytest.raises(CallFailed, match="does not exist"):
            async for _ in grpc.generate("hi", max_tokens=3):
                pass
    assert [call.request.adapter for call in adapted.dispatcher.calls] == ["sql", "sql"]


async def test_an_activated_adapter_is_used_from_the_last_place_of_its_invocation(folder: Path) -> None:
    """KV before it is named as that of the base model."""
    worker = decode_worker("d")
    worker.invocation = (7, 8)
    give([worker], "/sql", "one")
    async with (
        service(worker) as served,
        adapting(served, base="small") as adapters,
        open_frontends(folder, adapters=adapters) as opened,
        httpx.AsyncClient(base_url=opened.url, timeout=30) as client,
    ):
        await adapters.load("sql", "/sql")
        for prompt in ([3, 7, 8, 4, 7, 8, 5], [3, 7, 4]):
            answer = await client.post("/v1/completions", json={"model": "sql", "prompt": prompt})
            assert (answer.status_code, answer.json()["model"]) == (200, "sql")
        work, base = (call.request for call in opened.dispatcher.calls)
        key = activation_key(digest_of("one"), 7)
        assert (work.adapter_digest, work.adapter_start) == (digest_of("one"), 4)
        assert (list(work.prompt_keys), work.namespace) == ([3, 7, 8, 4, key, 8, 5], b"")
        assert (base.adapter, base.adapter_digest, base.namespace) == ("", b"", b"")
        assert not base.prompt_keys


async def test_each_adapter_has_a_card_with_its_folder_and_its_model(client: httpx.AsyncClient) -> None:
    await client.post("/v1/load_lora_adapter", json=SQL, headers=ADMIN)
    base, card = (await client.get("/v1/models")).json()["data"]
    assert base["id"] == "small"
    assert "parent" not in base
    assert (card["id"], card["root"], card["parent"]) == ("sql", "/sql", "small")
    assert (await client.get("/v1/models/sql")).json() == card
    assert (await client.get("/v1/models/none")).status_code == 404


async def test_the_document_of_the_apis_names_the_adapters(client: httpx.AsyncClient) -> None:
    async def names() -> list[str]:
        document = (await client.get("/openapi.json")).json()
        named = document["components"]["schemas"]["CompletionBody"]["properties"]["model"]
        found: list[str] = named["anyOf"][0]["enum"]
        return found

    assert await names() == ["small", ""]
    await client.post("/v1/load_lora_adapter", json=SQL, headers=ADMIN)
    assert await names() == ["small", "sql", "small:sql", ""]
