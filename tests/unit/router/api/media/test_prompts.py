"""Conversations with images become the token ids, keys and items that transformers' processor implies."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from common.origin import media_keys
from router.api.anthropic.requests import MessagesBody
from router.api.generation.generation import Generation, PreparedPrompt
from router.api.generation.generation_request import GenerationRequest
from router.api.generation.params.validation import parse
from router.api.generation.served_model import ServedModel
from router.api.generation.text.tokenizer import Tokenizer
from router.api.media.images import Images, ImageSettings
from router.api.media.processor import ImageProcessor
from router.api.openai.requests import ChatCompletionBody
from router.api.openai.responses_api.requests import ResponsesBody
from router.errors import InvalidRequest
from router.request_limits import RequestLimits
from tests.integration.frontends import ScriptedDispatcher
from tests.tiny_vision import PROCESSORS, file_of, picture, save_vision_files

FIRST, SECOND = picture(1), picture(2, (60, 20))


def url(image: Image.Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(file_of(image)).decode()}"


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(of: Image.Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(of)}}


def user(*parts: Mapping[str, Any] | str) -> dict[str, Any]:
    return {"role": "user", "content": parts[0] if isinstance(parts[0], str) else list(parts)}


class Served:
    def __init__(self, folder: Path, images: Images | None) -> None:
        self.tokenizer = Tokenizer.load(folder, vocab_size=400)
        model = ServedModel(name="m", path=folder, mode="mixed", max_model_len=4096, vocab_size=400)
        limits = RequestLimits(retention=True)
        self.generation = Generation(model, self.tokenizer, ScriptedDispatcher(), limits, images=images)
        self.folder = folder

    async def chat(self, *messages: Mapping[str, Any]) -> PreparedPrompt:
        body = json.dumps({"messages": messages}).encode()
        return await self.of(parse(ChatCompletionBody, body).to_request("r"))

    async def of(self, request: GenerationRequest) -> PreparedPrompt:
        return await self.generation.prepare(request.prompts[0])


@pytest.fixture(params=PROCESSORS)
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    save_vision_files(request.param, tmp_path)
    images = Images(tmp_path, ImageSettings(processes=1))
    await images.start()
    yield Served(tmp_path, images)
    await images.close()


@pytest.fixture
async def qwen(tmp_path: Path) -> AsyncIterator[Served]:
    save_vision_files("qwen2_5_vl", tmp_path)
    images = Images(tmp_path, ImageSettings(processes=1))
    await images.start()
    yield Served(tmp_path, images)
    await images.close()


async def test_ids_are_those_of_transformers_for_the_same_conversation(served: Served) -> None:
    content = [text("Look: "), image(FIRST), image(SECOND), text("\nWhat is it?"), image(FIRST)]
    prepared = await served.chat(user(*content), {"role": "assistant", "content": "A cat."}, user("Sure?"))
    processor: Any = ImageProcessor(served.folder, {})._processor
    plain = [{"type": "image"} if "image_url" in part else part for part in content]
    said = [text("A cat.")], [text("Sure?")]
    conversation = [
        {"role": "user", "content": plain},
        {"role": "assistant", "content": said[0]},
        {"role": "user", "content": said[1]},
    ]
    rendered = processor.tokenizer.apply_chat_template(
        conversation, tokenize=False, add_generation_prompt=True
    )
    expected = processor(text=[rendered], images=[[FIRST, SECOND, FIRST]], add_special_tokens=False)
    assert list(prepared.token_ids) == expected["input_ids"][0]

    items = prepared.media.items
    assert [item.digest == items[0].digest for item in items] == [True, False, True]
    assert len(prepared.media.keys) == len(prepared.token_ids)
    for item in items:
        span = slice(item.offset, item.offset + item.length)
        assert prepared.media.keys[span] == media_keys(item.digest, range(item.length))
    texts = [at for at, key in enumerate(prepared.media.keys) if key >= 0]
    assert all(prepared.media.keys[at] == prepared.token_ids[at] for at in texts)


async def test_a_conversation_without_images_has_no_media(served: Served) -> None:
    prepared = await served.chat(user("Hello"))
    assert prepared.media.items == ()
    assert "Hello" in served.tokenizer.decode(prepared.token_ids)


async def test_three_apis_make_the_same_prompt_of_the_same_conversation(served: Served) -> None:
    chat = await served.chat(user(text("a"), image(FIRST), text("b")))
    encoded = url(FIRST)
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": encoded, "detail": "auto"},
        {"type": "input_text", "text": "b"},
    ]
    body: dict[str, Any] = {"model": "m", "input": [{"role": "user", "content": parts}]}
    responses = await served.of(parse(ResponsesBody, json.dumps(body).encode()).to_request("r"))
    data = encoded.partition(",")[2]
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    body = {"model": "m", "max_tokens": 1, "messages": [user(text("a"), block, text("b"))]}
    messages = await served.of(parse(MessagesBody, json.dumps(body).encode()).to_request("r"))
    assert list(responses.token_ids) == list(messages.token_ids) == list(chat.token_ids)
    assert responses.media.items == messages.media.items == chat.media.items
    block["source"] = {"type": "url", "url": encoded}
    body = {"model": "m", "max_tokens": 1, "messages": [user(text("a"), block, text("b"))]}
    by_url = await served.of(parse(MessagesBody, json.dumps(body).encode()).to_request("r"))
    assert by_url.media.items == chat.media.items


async def test_images_of_equal_size_in_each_others_place_change_the_keys_alone(qwen: Served) -> None:
    red, blue = (Image.new("RGB", (40, 40), colour) for colour in ("red", "blue"))
    one = await qwen.chat(user(image(red), image(blue)))
    other = await qwen.chat(user(image(blue), image(red)))
    assert list(one.token_ids) == list(other.token_ids)
    assert one.media.keys != other.media.keys
    assert [i.digest for i in one.media.items] == [i.digest for i in reversed(other.media.items)]


async def test_a_prompt_is_counted_with_the_tokens_of_its_images(qwen: Served) -> None:
    limits = replace(qwen.generation.limits, max_prompt_tokens=70)
    qwen.generation.limits = limits  # type: ignore[misc]
    await qwen.chat(user(image(FIRST)))
    with pytest.raises(InvalidRequest, match="at most 70") as refusal:
        await qwen.chat(user(*[image(FIRST)] * 3))
    assert refusal.value.code == "context_length_exceeded"


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}


async def test_an_image_of_a_tool_is_shown_after_its_result(qwen: Served) -> None:
    tool = {"role": "tool", "tool_call_id": "c", "content": [text("a map"), image(FIRST)]}
    prepared = await qwen.chat(user("go"), CALLING, tool)
    [item] = prepared.media.items
    before = qwen.tokenizer.decode(prepared.token_ids[: item.offset])
    assert "a map" in before
    asked = await qwen.chat(user("go"), CALLING, tool, user("and?"))
    assert len(asked.media.items) == 1


@pytest.mark.parametrize("role", ["system", "assistant"])
async def test_images_of_other_roles_are_refused(qwen: Served, role: str) -> None:
    with pytest.raises(InvalidRequest, match=f"role {role} cannot have images"):
        await qwen.chat(user("a"), {"role": role, "content": [image(FIRST)]}, user("b"))


async def test_a_text_that_looks_like_an_image_is_refused_beside_images(served: Served) -> None:
    facts = ImageProcessor(served.folder, {}).facts
    for token in {facts.placeholder, facts.row}:
        with pytest.raises(InvalidRequest, match="stands for an image"):
            await served.chat(user(text(f"see {token} here"), image(FIRST)))


async def test_a_model_of_text_refuses_images_by_name(tmp_path: Path) -> None:
    save_vision_files("gemma3", tmp_path)
    served = Served(tmp_path, None)
    with pytest.raises(
        InvalidRequest, match="The model 'm' takes no images: it is served as a model of text"
    ):
        await served.chat(user(image(FIRST)))


async def test_marked_blocks_end_after_the_tokens_of_their_images(qwen: Served) -> None:
    encoded = url(FIRST).partition(",")[2]
    mark = {"cache_control": {"type": "ephemeral"}}
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}
    content = [text("before") | mark, block | mark, text("after") | mark]
    body = {"model": "m", "max_tokens": 1, "messages": [user(*content)]}
    prepared = await qwen.of(parse(MessagesBody, json.dumps(body).encode()).to_request("r"))
    [item] = prepared.media.items
    first, second, third = (tokens for tokens, _ in prepared.prefixes)
    assert first < item.offset
    assert item.offset + item.length <= second < third
    assert qwen.tokenizer.decode(prepared.token_ids[second:third]) == "after"
