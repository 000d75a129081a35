"""Structured output through both frontends, with real workers, in every mode."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Literal

import grpc
import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from router.config.choices import Mode
from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "the quick brown fox"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "sizes"],
    "additionalProperties": False,
}


class Person(BaseModel):
    name: str = Field(max_length=6)
    kind: Literal["child", "adult"]


def client_of(cluster: LocalCluster) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0)


async def chat(client: openai.AsyncOpenAI, **parameters: Any) -> str:
    answer = await client.chat.completions.create(
        model="small", messages=MESSAGES, max_tokens=400, **{"temperature": 0, **parameters}
    )
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.content is not None
    return choice.message.content


@pytest.mark.parametrize("temperature", [0, 1])
async def test_every_field_is_enforced(cluster: LocalCluster, temperature: float) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "shirt", "schema": SCHEMA, "strict": True}}
    fields: dict[str, dict[str, Any]] = {
        "response_format": {"response_format": schema},
        "json": {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
        "json text": {"extra_body": {"json_schema": json.dumps(SCHEMA)}},
        "guided": {"extra_body": {"guided_json": SCHEMA}},
        "regex": {"extra_body": {"structured_outputs": {"regex": "[a-c]{4}[0-9]"}}},
        "sglang regex": {"extra_body": {"regex": "[a-c]{4}[0-9]"}},
        "choice": {"extra_body": {"guided_choice": ["red", "grün"]}},
        "ebnf": {"extra_body": {"ebnf": 'root ::= "<" [a-c] ">" | "{" root "}"'}},
    }
    async with client_of(cluster) as client:
        answers = await asyncio.gather(
            *(chat(client, temperature=temperature, seed=3, **given) for given in fields.values())
        )
    said = dict(zip(fields, answers, strict=True))
    for name in ("response_format", "json", "json text", "guided"):
        jsonschema.validate(json.loads(said[name]), SCHEMA)
        assert said[name] == said["response_format"]
    assert re.fullmatch("[a-c]{4}[0-9]", said["regex"])
    assert said["sglang regex"] == said["regex"]
    assert said["choice"] in ("red", "grün")
    assert re.fullmatch("{*<[a-c]>}*", said["ebnf"])


async def test_all_modes_give_the_same_answer(small: SmallModel) -> None:
    given = {"extra_body": {"guided_json": SCHEMA}, "temperature": 0.8, "seed": 5}
    answers = set()
    for mode in Mode:
        async with local_cluster(small, mode) as cluster, client_of(cluster) as client:
            answers.add(await chat(client, **given))
    assert len(answers) == 1


async def test_completions_of_one_prompt_each_follow_the_grammar(cluster: LocalCluster) -> None:
    async with client_of(cluster) as client:
        answer = await client.completions.create(
            model="small",
            prompt="lazy dog",
            n=4,
            seed=1,
            max_tokens=100,
            extra_body={"structured_outputs": {"regex": "[xyz]{6}"}},
        )
    texts = [choice.text for choice in answer.choices]
    assert all(re.fullmatch("[xyz]{6}", text) for text in texts)
    assert len(set(texts)) > 1


async def test_a_pydantic_model_is_parsed_by_the_official_client(small: SmallModel) -> None:
    async with local_cluster(small, Mode.DISAGG) as cluster, client_of(cluster) as client:
        answer = await client.chat.completions.parse(
            model="small", messages=MESSAGES, response_format=Person, temperature=0
        )
        assert isinstance(answer.choices[0].message.parsed, Person)
        async with client.chat.completions.stream(
            model="small", messages=MESSAGES, response_format=Person, temperature=0
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == answer.choices[0].message.parsed


@pytest.mark.parametrize(
    ("given", "param", "reason"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "nope"}},
                }
            },
            "response_format.json_schema.schema",
            "nope",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "(?=a)b"}}}, "structured_outputs.regex", "look"),
        ({"extra_body": {"ebnf": "root ::= (" + "a " * 400}}, "ebnf", "Expected"),
        ({"extra_body": {"regex": "a", "ebnf": "b"}}, "ebnf", "both"),
        ({"extra_body": {"regex": "a", "min_tokens": 3}}, "min_tokens", "regex"),
        ({"extra_body": {"regex": "a", "ignore_eos": True}}, "ignore_eos", "regex"),
    ],
)
async def test_a_grammar_that_cannot_be_enforced_is_refused_by_name(
    small: SmallModel, given: dict[str, Any], param: str, reason: str
) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster, client_of(cluster) as client:
        with pytest.raises(openai.BadRequestError, match=reason) as refusal:
            await chat(client, **given)
        assert refusal.value.param == param


async def test_grpc_takes_a_grammar(small: SmallModel) -> None:
    async with (
        local_cluster(small, Mode.MIXED) as cluster,
        grpc.aio.insecure_channel(cluster.target) as channel,
    ):
        stub = router_pb2_grpc.RouterStub(channel)

        def generate(grammar: sampling_pb2.Grammar) -> Any:
            sampling = sampling_pb2.SamplingParams(grammar=grammar, max_tokens=50)
            return stub.Generate(router_pb2.GenerateRequest(text="fox", sampling=sampling))

        grammar = sampling_pb2.Grammar(kind=sampling_pb2.GRAMMAR_KIND_CHOICE, text='["yes", "no"]')
        text = "".join([message.text async for message in generate(grammar)])
        assert text in ("yes", "no")
        for bad, detail in (
            (sampling_pb2.Grammar(kind=sampling_pb2.GRAMMAR_KIND_CHOICE, text="yes"), "choices"),
            (sampling_pb2.Grammar(text="yes"), "kind"),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=detail) as refusal:
                await anext(aiter(generate(bad)))
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
