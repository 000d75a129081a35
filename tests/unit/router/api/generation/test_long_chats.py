"""Chats that would take the event loop, or that do not fit the context."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from router.api.anthropic.requests import MessagesBody
from router.api.generation.generation import Generation
from router.api.generation.generation_request import Chat, GenerationRequest
from router.api.generation.output.formats import OutputFormats
from router.api.generation.params.bounds import ServedBounds
from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.params.validation import parse
from router.api.generation.served_model import ServedModel
from router.api.generation.tenants import CURRENT_TENANT, Tenant
from router.api.generation.text.chat_template import ChatTemplate
from router.api.generation.text.tokenizer import Tokenizer
from router.api.openai.requests import ChatCompletionBody
from router.errors import InvalidRequest, Overloaded
from router.request_limits import RequestLimits

MODEL = ServedModel(name="small", path=Path("none"), mode="mixed", max_model_len=64, vocab_size=100)
MESSAGE = {"role": "user", "content": "x"}


def make_generation(tokenizer: Any) -> Generation:
    tokenizer.fewest_tokens = Mock(return_value=1)
    return Generation(MODEL, tokenizer, Mock(), formats=OutputFormats())


def make_request(*prompts: Any) -> GenerationRequest:
    return GenerationRequest(id="a", prompts=list(prompts), options=SamplingOptions())


async def test_a_chat_of_more_messages_than_the_context_has_tokens_is_refused_unrendered() -> None:
    tokenizer = Mock()
    with pytest.raises(InvalidRequest, match="at least 64 tokens") as refusal:
        await make_generation(tokenizer).start(make_request(Chat([MESSAGE] * 64)))
    assert refusal.value.code == "context_length_exceeded"
    tokenizer.rendered.assert_not_called()


@pytest.mark.parametrize("kind", [ChatCompletionBody, MessagesBody])
def test_too_many_messages_are_refused_as_soon_as_they_are_parsed(kind: Any) -> None:
    bounds = ServedBounds.of(MODEL, RequestLimits())
    body = {"model": "small", "max_tokens": 5, "messages": [MESSAGE] * 63}
    parse(kind, json.dumps(body).encode(), bounds)
    body["messages"] = [MESSAGE] * 64
    with pytest.raises(InvalidRequest) as refusal:
        parse(kind, json.dumps(body).encode(), bounds)
    assert (refusal.value.param, refusal.value.code) == ("messages", "context_length_exceeded")


@pytest.mark.parametrize(
    ("messages", "length", "inline"), [(2, 10, True), (1, 10_000, False), (500, 1, False)]
)
async def test_long_conversations_are_rendered_in_a_thread(messages: int, length: int, inline: bool) -> None:
    threads: list[int] = []

    class Template(ChatTemplate):
        def render(self, *_: Any, **__: Any) -> str:
            threads.append(threading.get_ident())
            return "rendered"

    tokenizer = Mock(spec=Tokenizer, _chat_template=Template("", {}))
    tokenizer.render = lambda *args: Tokenizer.render(tokenizer, *args)
    text = await Tokenizer.rendered(tokenizer, [{"role": "user", "content": "x" * length}] * messages, {})
    assert text == "rendered"
    assert [thread == threading.get_ident() for thread in threads] == [inline]


async def test_a_request_counts_for_its_key_while_its_prompt_is_prepared() -> None:
    encoding = asyncio.Event()

    async def encode(_: str) -> list[int]:
        await encoding.wait()
        return [1, 2, 3]

    tokenizer = Mock(encode=AsyncMock(side_effect=encode))
    generation = make_generation(tokenizer)
    tenant = Tenant("mine", max_requests=1)
    CURRENT_TENANT.set(tenant)
    first = asyncio.create_task(generation.start(make_request("hello")))
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded, match="1 completions"):
        await generation.start(make_request("hello"))
    encoding.set()
    await first
    assert tenant.running == 0
