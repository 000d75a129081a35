"""The typed gRPC client against the frontends, over a scripted model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from engine.modeling.loader.checkpoint import resolve
from router.errors import Overloaded
from rpc.baton.v1 import sampling_pb2
from rpc.router_client import CallFailed, Chat, ChatMessage, RouterClient, Tool
from tests.clients.scripted_model import weather_script
from tests.integration.frontends import Frontends, open_frontends

ASK = ChatMessage(role="user", content="Weather in Bern?")


@pytest_asyncio.fixture
async def frontends() -> AsyncIterator[Frontends]:
    async with open_frontends(resolve("smollm2").path, max_model_len=2048) as opened:
        yield opened


@pytest_asyncio.fixture
async def client(frontends: Frontends) -> AsyncIterator[RouterClient]:
    async with RouterClient(frontends.target) as client:
        yield client


async def test_pieces_make_up_the_answer(client: RouterClient) -> None:
    pieces = [piece async for piece in client.generate("Hello", max_tokens=5, temperature=0.0)]
    answer = await client.answer("Hello", max_tokens=5, temperature=0.0)
    assert "".join(piece.text for piece in pieces) == answer.text
    assert answer.usage.completion_tokens == len(answer.token_ids) == 5
    assert answer.finish_reason == sampling_pb2.FINISH_REASON_LENGTH


async def test_a_conversation_with_tools_goes_back_and_forth(
    frontends: Frontends, client: RouterClient
) -> None:
    frontends.dispatcher.script = weather_script(frontends.generation.tokenizer)
    tools = [Tool(name="weather", parameters='{"type": "object"}')]
    asked = await client.answer(Chat(messages=[ASK], tools=tools))
    [call] = asked.calls
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bern"})
    history = [
        ASK,
        ChatMessage(role="assistant", tool_calls=asked.calls),
        ChatMessage(role="tool", tool_call_id=call.id, content="sunny"),
    ]
    assert (await client.answer(Chat(messages=history, tools=tools))).content == "Sunny."


async def test_tokens_of_a_text_become_the_text_again(client: RouterClient) -> None:
    assert await client.detokenize(await client.tokenize("hello world")) == "hello world"
    assert (await client.model_info()).model == "small"
    assert not await client.abort("none such")


async def test_a_refusal_names_the_field_and_the_reason(client: RouterClient) -> None:
    with pytest.raises(CallFailed) as refusal:
        await client.answer("hi", temperature=9.0)
    assert refusal.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert (refusal.value.param, refusal.value.reason) == ("temperature", "INVALID_VALUE")
    assert refusal.value.request_id


async def test_an_overloaded_server_returns_the_time_to_wait(
    frontends: Frontends, client: RouterClient
) -> None:
    frontends.dispatcher.failure = Overloaded("full", retry_after_s=2.5)
    with pytest.raises(CallFailed) as refusal:
        await client.answer("hi")
    assert refusal.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (refusal.value.retry_after_s, refusal.value.reason) == (2.5, "OVERLOADED")


async def test_a_deadline_reaches_the_workers(frontends: Frontends, client: RouterClient) -> None:
    await client.answer("hi", timeout_s=30.0)
    # gRPC rounds a deadline of 10 to 100 seconds up to the next tenth when it writes the header, so the
    # server may see slightly more than the client asked for.
    assert 0 < frontends.dispatcher.calls[0].request.timeout_s <= 30.5


async def test_every_call_names_the_clients_model(frontends: Frontends) -> None:
    async with RouterClient(frontends.target, model="another") as client:
        for call in (
            client.answer("Hello"),
            client.tokenize("Hello"),
            client.detokenize([1]),
            client.model_info(),
        ):
            with pytest.raises(CallFailed, match="another"):
                await call
