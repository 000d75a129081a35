"""Requests of every API, streamed or not, with any fields, are replayed and verified token by token."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from router.api.apis import APIS
from router.api.generation.audit.record_file import RecordFile
from router.api.generation.output.call_formats import ToolFormat
from router.api.generation.output.formats import OutputFormats
from router.command.audit.computing import OnService
from router.command.audit.replay import Replayed, read_log, replay
from router.command.client.api import ApiClient
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.auditing import verdict
from tests.integration.service.test_receipts import (
    BODIES,
    body_of,
    found,
    post,
    prompt_of,
    streamed,
    through_grpc,
)

BODIES_OF_ALL = BODIES | {"/skyrl/v1/generate": {"sampling_params": {"max_tokens": 24}}}
CHAT = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"day": {"type": "string", "enum": ["monday", "friday"]}},
            "required": ["day"],
        },
    },
}
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 22, 333]}}, "required": ["n"]}
KINDS: dict[str, dict[str, Any]] = {
    "several": {"n": 3, "temperature": 1.0},
    "a seed": {"seed": 7, "temperature": 1.0},
    "the largest seed": {"seed": (1 << 64) - 1, "temperature": 1.0},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "a forced tool": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
    "one forced tool": {"tools": [TOOL], "tool_choice": TOOL | {"function": {"name": "weather"}}},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    "a grammar": {"structured_outputs": {"grammar": 'root ::= "a"+'}},
    "ends": {"stop": ["e", "a"], "min_tokens": 3, "stop_token_ids": [9]},
    "a salt": {"cache_salt": "mine"},
    "predicted": {"prediction": {"type": "content", "content": "What is the weather like?"}},
    "with logprobs": {"logprobs": True, "top_logprobs": 2},
    "biased": {"logit_bias": {"7": 2.5}, "ignore_eos": True},
    "truncated": {"top_k": 5, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
}


def test_these_are_all_endpoints_that_generate() -> None:
    assert BODIES_OF_ALL.keys() == {
        endpoint.path for api in APIS for endpoint in api.endpoints if endpoint.event is not None
    }


def asked(path: str, small: SmallModel, **more: Any) -> dict[str, Any]:
    if path != "/skyrl/v1/generate":
        return body_of(path, small, **more)
    return {"token_ids": prompt_of(small), "receipt": True, **BODIES_OF_ALL[path]}


async def replayed(log: Path, cluster: LocalCluster) -> list[Replayed]:
    computer = OnService(ApiClient(cluster.url))
    return await asyncio.to_thread(lambda: list(replay(read_log([log]), computer, 0.0, 4)))


async def test_requests_of_every_api_are_replayed(small: SmallModel, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with local_cluster(small, Mode.MIXED) as cluster:
        with RecordFile(log, 1 << 24) as records:
            cluster.generation.records = records
            for path in BODIES_OF_ALL:
                answer = await post(cluster, path, asked(path, small))
                assert answer.status_code == 200, answer.text
                assert found(answer.json()), path
                assert found(await streamed(cluster, path, asked(path, small))), path
            await through_grpc(cluster, small, temperature=1.0)
            cluster.generation.records = None
    requests = read_log([log])
    assert len(requests) == 2 * len(BODIES_OF_ALL) + 1
    async with local_cluster(small, Mode.DISAGG) as cluster:
        results = await replayed(log, cluster)
        assert Counter(each.outcome for each in results) == {"equal": len(requests)}, results
        places = changed_tokens(log)
        results = await replayed(log, cluster)
        assert {each.request: each.difference and each.difference.position for each in results} == places


def changed_tokens(log: Path) -> dict[str, int]:
    """Change a token of each answer, each at another place; returns where, by request."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    places = {}
    for number, line in enumerate(lines):
        tokens = line["answer"]["token_ids"]
        places[line["request"]] = number % len(tokens)
        tokens[places[line["request"]]] ^= 1
    log.write_text("\n".join(map(json.dumps, lines)))
    return places


@pytest.mark.parametrize("own_format", [False, True], ids=["unknown format", "hermes"])
async def test_requests_of_every_kind_are_replayed_and_verified(
    small: SmallModel, tmp_path: Path, own_format: bool
) -> None:
    log = tmp_path / "log.jsonl"
    async with local_cluster(small, Mode.MIXED) as cluster:
        known = OutputFormats(ToolFormat.HERMES if own_format else None)
        cluster.generation.formats = known  # type: ignore[misc]
        with RecordFile(log, 1 << 24) as records:
            cluster.generation.records = records
            receipts = {}
            for kind, fields in KINDS.items():
                answer = await post(cluster, CHAT, body_of(CHAT, small, **fields))
                assert answer.status_code == 200, (kind, answer.text)
                receipts[kind] = found(answer.json())
                if kind != "predicted":
                    assert found(await streamed(cluster, CHAT, body_of(CHAT, small, **fields))), kind
            cluster.generation.records = None
        grammar = receipts["a forced tool"][0]["sampling"]["grammar"]
        assert grammar["kind"] == ("ebnf" if own_format else "json_schema")
    async with local_cluster(small, Mode.DISAGG) as cluster:
        results = await replayed(log, cluster)
        assert {each.outcome for each in results} == {"equal"}, results
        assert len(results) == 2 * len(KINDS) + 2 * 2 - 1
        for kind, several in receipts.items():
            for receipt in several:
                verified, text = await verdict(cluster, receipt)
                assert verified["outcome"] == "equal", (kind, text)
