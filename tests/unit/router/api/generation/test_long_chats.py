"""Chats that would take the event loop, or that do not fit the context."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

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
from tests.integration.frontends import ScriptedDispatcher
from tests.unit.router.api.generation.text.tokenizers import byte_level

MODEL = ServedModel(name="small", path=Path("none"), mode="mixed", max_model_len=64, vocab_size=400)
MESSAGE = {"role": "user", "content": "x"}


class Template(ChatTemplate):
    """Notes the threads that render it."""

    def __init__(self) -> None:
        super().__init__("", {})
        self.threads: list[int] = []

    def render(self, *_: Any, **__: Any) -> str:
        self.threads.append(threading.get_ident())
        return "rendered"


def make_generation(tokenizer: Tokenizer) -> Generation:
    return Generation(MODEL, tokenizer, ScriptedDispatcher(), formats=OutputFormats())


def make_request(*prompts: Any) -> GenerationRequest:
    return GenerationRequest(id="a", prompts=list(prompts), options=SamplingOptions())


async def test_a_chat_of_more_messages_than_the_context_has_tokens_is_refused_unrendered() -> None:
    template = Template()
    tokenizer = Tokenizer(byte_level(), vocab_size=400, chat_template=template)
    with pytest.raises(InvalidRequest, match="at least 64 tokens") as refusal:
        await make_generation(tokenizer).start(make_request(Chat([MESSAGE] * 64)))
    assert refusal.value.code == "context_length_exceeded"
    assert not template.threads


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
    template = Template()
    tokenizer = Tokenizer(byte_level(), vocab_size=400, chat_template=template)
    text = await tokenizer.rendered([{"role": "user", "content": "x" * length}] * messages, {})
    assert text == "rendered"
    assert [thread == threading.get_ident() for thread in template.threads] == [inline]


async def test_a_request_counts_for_its_key_while_its_prompt_is_prepared() -> None:
    encoding = asyncio.Event()

    class SlowTokenizer(Tokenizer):
        async def encode(self, text: str) -> list[int]:
            await encoding.wait()
            return await super().encode(text)

    generation = make_generation(SlowTokenizer(byte_level(), vocab_size=400))
    tenant = Tenant("mine", max_requests=1)
    CURRENT_TENANT.set(tenant)
    first = asyncio.create_task(generation.start(make_request("hello")))
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded, match="1 completions"):
        await generation.start(make_request("hello"))
    encoding.set()
    await first
    assert tenant.running == 0
