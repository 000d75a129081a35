"""Images over HTTP: every answer is transformers', for the images that were sent, in every mode."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
import torch
from PIL import Image
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

from baton import LLM, SamplingParams
from router.api.generation.text.tokenizer import Tokenizer
from router.api.media.images import Images, ImageSettings
from router.api.media.processor import ImageProcessor
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import MAX_LEN, SmallModel
from tests.tiny_vision import PROCESSORS, file_of, picture

TOKENS = 8
RED, BLUE = (Image.new("RGB", (40, 40), colour) for colour in ("red", "blue"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    folder = tmp_path_factory.mktemp("smolvlm")
    row_id = PROCESSORS["smolvlm"].save(folder)
    vocab = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]) + 60
    text = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.5,
        "max_position_embeddings": MAX_LEN,
    }
    eye = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = SmolVLMConfig(
        text_config=text,
        vision_config=eye | {"image_size": 16, "patch_size": 4, "initializer_range": 0.5},
        scale_factor=2,
        tie_word_embeddings=False,
        image_token_id=row_id,
        pad_token_id=0,
    )
    model = SmolVLMForConditionalGeneration(config).eval()
    model.get_output_embeddings().weight.data[row_id] = 0.0  # it never answers with a part of an image
    model.save_pretrained(folder)
    return SmallModel(folder, model, Tokenizer.load(folder, vocab_size=vocab))


@dataclass
class Asked:
    """What one conversation must be answered with."""

    prompt: list[int]
    answer: list[int]


class Service:
    def __init__(self, client: httpx.AsyncClient, small: SmallModel, cluster: LocalCluster) -> None:
        self._client, self._small, self.cluster = client, small, cluster
        self._processor: Any = ImageProcessor(small.folder, {})._processor

    def expected(self, parts: Sequence[str | Image.Image]) -> Asked:
        content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in parts]
        text = self._processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        images = [part for part in parts if isinstance(part, Image.Image)]
        given = self._processor(text=[text], images=[images], add_special_tokens=False, return_tensors="pt")
        prompt: list[int] = given.pop("input_ids")[0].tolist()
        pixels = {name: given[name] for name in ("pixel_values", "pixel_attention_mask")}
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(TOKENS):
                logits = self._small.model(input_ids=torch.tensor([ids]), use_cache=False, **pixels).logits
                ids.append(int(logits[0, -1].argmax()))
        return Asked(prompt, ids[len(prompt) :])

    async def answer(self, parts: Sequence[str | Image.Image], **more: Any) -> dict[str, Any]:
        body = {
            "messages": [{"role": "user", "content": [_part(part) for part in parts]}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        response = await self._client.post("/v1/chat/completions", json=body | more)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def check(self, parts: Sequence[str | Image.Image]) -> int:
        """Cached tokens of an answer that is right."""
        asked, found = self.expected(parts), await self.answer(parts)
        assert found["prompt_token_ids"] == asked.prompt
        assert found["choices"][0]["token_ids"] == asked.answer
        assert found["usage"]["prompt_tokens"] == len(asked.prompt)
        cached: int = found["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached


def _part(part: str | Image.Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = f"data:image/png;base64,{base64.b64encode(file_of(part)).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[Mode.MIXED, Mode.DISAGG])
async def service(request: pytest.FixtureRequest, small: SmallModel) -> AsyncIterator[Service]:
    async with AsyncExitStack() as stack:
        images = Images(small.folder, ImageSettings(processes=1))
        stack.push_async_callback(images.close)
        await images.start()
        cluster = await stack.enter_async_context(local_cluster(small, request.param, images=images))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=cluster.url, timeout=60))
        yield Service(client, small, cluster)
        await cluster.all_pages_back()


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    "parts",
    [
        ["What is this? ", picture(1)],
        [picture(2, (64, 64)), picture(3, (10, 70)), " and ", picture(2, (64, 64)), "?" * 200],
        ["no image at all"],
    ],
    ids=["one", "several", "none"],
)
async def test_an_answer_is_transformers(service: Service, parts: list[Any]) -> None:
    if any(isinstance(part, Image.Image) for part in parts):
        await service.check(parts)
        cached = await service.check(parts)
        assert cached >= len(service.expected(parts).prompt) - 17
    else:
        assert (await service.answer(parts))["usage"]["completion_tokens"] == TOKENS


async def test_a_blue_image_is_not_answered_as_the_red_one_before_it(service: Service) -> None:
    question = "Colour? ", "Answer:"
    red, blue = ([question[0], image, question[1]] for image in (RED, BLUE))
    assert service.expected(red).prompt == service.expected(blue).prompt
    assert service.expected(red).answer != service.expected(blue).answer
    await service.check(red)
    cached = await service.check(blue)
    assert cached <= service.expected(blue).prompt.index(service._small.model.config.image_token_id)
    assert await service.check(red) > cached


async def test_two_images_of_equal_size_may_change_places(service: Service) -> None:
    for _ in range(2):
        await service.check([RED, BLUE, "first?"])
        await service.check([BLUE, RED, "first?"])


async def test_tokenize_counts_as_usage_does(service: Service) -> None:
    parts = ["a", picture(5), "b"]
    messages = [{"role": "user", "content": [_part(part) for part in parts]}]
    counted = (await service._client.post("/tokenize", json={"messages": messages})).json()
    assert counted["tokens"] == service.expected(parts).prompt
    assert counted["count"] == (await service.answer(parts))["usage"]["prompt_tokens"]


async def test_answers_offline_are_the_same(service: Service) -> None:
    parts = ["Look: ", RED, BLUE, "?"]
    asked = service.expected(parts)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    content = [_part("Look: "), {"type": "image_pil", "image_pil": RED}, _part(BLUE), _part("?")]
    with LLM(str(service._small.folder), device="cpu", dtype="float32", kv_pool_tokens=1024) as llm:
        [said] = llm.chat([{"role": "user", "content": content}], params, progress=False)
        text = service._processor.tokenizer.decode(asked.prompt).split("<fake_token_around_image>")
        plain = {"prompt": f"{text[0]}<image><image>{text[-1]}", "multi_modal_data": {"image": [RED, BLUE]}}
        [generated] = llm.generate(plain, params, progress=False)
        assert said.prompt_token_ids == generated.prompt_token_ids == asked.prompt
        assert said.outputs[0].token_ids == generated.outputs[0].token_ids == asked.answer
        with pytest.raises(ValueError, match="for 2 images"):
            llm.generate(plain | {"prompt": "no placeholder"}, params, progress=False)


async def test_the_time_of_an_encode_is_in_the_timeline(service: Service) -> None:
    image = picture(77, (50, 50))
    parts = ["Where? ", image, " and ", image, " and ", picture(78)]
    found = (await service.answer(parts, timings=True))["timings"]
    [span, other] = found["encodes"]
    assert 0 < span["end_s"] - span["begin_s"] <= found["encode_s"] <= found["prefill_s"]
    assert 0 < span["begin_s"] < span["end_s"] <= other["begin_s"] < other["end_s"] <= found["ttft_s"]
    prompt = service.expected(parts).prompt
    row = service._small.model.config.image_token_id
    assert row in prompt[span["first_token"] : span["first_token"] + span["num_tokens"]]
    again = (await service.answer([*parts, "?"], timings=True))["timings"]
    assert (again["encodes"], again["encode_s"]) == ([], 0)


async def test_workers_count_images_encoded_and_looked_up(service: Service) -> None:
    async def counts() -> list[int]:
        known = await service.cluster.stats()
        return [
            sum(getattr(stats, name) for stats in known)
            for name in ("images_encoded", "image_cache_queries", "image_cache_hits")
        ]

    before = await counts()
    image = picture(99)
    await service.check(["A ", image, image])
    await service.check(["Once more ", image])
    assert [now - then for now, then in zip(await counts(), before, strict=True)] == [1, 3, 2]
    counted = 0.0
    for session in service.cluster.registry.sessions():
        text = (await service._client.get(f"http://{session.info.metrics_address}/metrics")).text
        counted += sum(float(n) for n in re.findall(r"^baton_encode_seconds_count\{.*\} (.*)$", text, re.M))
    assert counted == (await counts())[0]


async def test_a_damaged_image_is_a_400_with_the_reason(service: Service) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    response = await service._client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_image"
    assert "Image 1 of the request cannot be used" in response.json()["error"]["message"]
