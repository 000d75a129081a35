"""Images over HTTP for a family of each kind: every answer is transformers', with a handoff.

`test_images` has the same of SmolVLM, in every mode.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio
from PIL import Image

from baton import LLM, SamplingParams
from engine.config import Forecast
from engine.model_config.model_spec import ModelSpec
from router.api.media.images import Images, ImageSettings
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.integration.service.vision_models import TOKENS, VisionModel
from tests.tiny_vision import file_of, picture

PAGE = 16
RED, BLUE = (Image.new("RGB", (40, 40), colour) for colour in ("red", "blue"))
KINDS = (
    "gemma3",  # bidirectional
    "gemma4",  # padded patches
    "qwen2_5_vl",  # M-RoPE
    "qwen3_vl",  # deepstack
)


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return VisionModel(request.param, tmp_path_factory.mktemp(request.param))


class Service:
    def __init__(self, client: httpx.AsyncClient, model: VisionModel, cluster: LocalCluster) -> None:
        self.client, self.model, self.cluster = client, model, cluster

    async def answer(self, parts: Sequence[str | Image.Image], **more: Any) -> dict[str, Any]:
        body = {
            "messages": [{"role": "user", "content": [_part(part) for part in parts]}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        response = await self.client.post("/v1/chat/completions", json=body | more)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def check(self, parts: Sequence[str | Image.Image], tokens: int = TOKENS) -> int:
        """Cached tokens of an answer that is right."""
        asked, found = self.model.expected(parts, tokens), await self.answer(parts, max_tokens=tokens)
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


@asynccontextmanager
async def serving(model: VisionModel, mode: Mode, **settings: Any) -> AsyncIterator[Service]:
    async with AsyncExitStack() as stack:
        vision = ModelSpec.from_folder(model.small.folder).vision
        assert vision is not None
        images = Images(model.small.folder, ImageSettings(processes=1, arrays=sorted(vision.arrays)))
        stack.push_async_callback(images.close)
        await images.start()
        cluster = await stack.enter_async_context(local_cluster(model.small, mode, images=images, **settings))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=cluster.url, timeout=120))
        yield Service(client, model, cluster)
        await cluster.all_pages_back()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(model: VisionModel) -> AsyncIterator[Service]:
    """Every answer is computed by a prefill worker and a decode worker, which gets no pixels."""
    async with serving(model, Mode.DISAGG) as found:
        yield found


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    "parts",
    [
        ["What is this? ", picture(1)],
        [picture(2, (64, 64)), picture(3, (10, 70)), " and ", picture(2, (64, 64)), "?" * 200],
        [picture(4), picture(4), "twice?"],
    ],
    ids=["one", "several", "repeated"],
)
async def test_an_answer_is_transformers(service: Service, parts: list[Any]) -> None:
    await service.check(parts)
    cached = await service.check(parts)
    assert cached >= len(service.model.prompt(parts)) - PAGE - 1


async def test_a_text_without_images_is_answered(service: Service) -> None:
    await service.check(["no image at all"])


async def test_a_blue_image_is_not_answered_as_the_red_one_before_it(service: Service) -> None:
    question = "Colour? ", "Answer:"
    red, blue = ([question[0], image, question[1]] for image in (RED, BLUE))
    asked = [service.model.expected(parts) for parts in (red, blue)]
    assert asked[0].prompt == asked[1].prompt
    assert asked[0].answer != asked[1].answer
    await service.check(red)
    cached = await service.check(blue)
    assert cached <= asked[1].prompt.index(service.model.row_id)
    assert await service.check(red) > cached


async def test_two_images_of_equal_size_may_change_places(service: Service) -> None:
    for _ in range(2):
        await service.check([RED, BLUE, "first?"])
        await service.check([BLUE, RED, "first?"])


async def test_a_prefix_hit_ends_within_an_image(service: Service) -> None:
    image = picture(6)
    for padding in range(PAGE):
        parts = ["." * (1 + padding), image]
        prompt = service.model.prompt([*parts, "?"])
        rows = [at for at, token in enumerate(prompt) if token == service.model.row_id]
        boundary = (rows[-1] + 1) // PAGE * PAGE
        if rows[0] < boundary <= rows[-1] < boundary + PAGE - 8:
            break
    await service.check([*parts, "What?" * 8])
    assert await service.check([*parts, "Which?" * 8]) == boundary


async def test_tokenize_counts_as_usage_does(service: Service) -> None:
    parts = ["a", picture(5), "b", picture(7, (20, 50))]
    messages = [{"role": "user", "content": [_part(part) for part in parts]}]
    counted = (await service.client.post("/tokenize", json={"messages": messages})).json()
    assert counted["tokens"] == service.model.prompt(parts)
    assert counted["count"] == (await service.answer(parts))["usage"]["prompt_tokens"]


async def test_preempted_answers_about_images_go_on(model: VisionModel) -> None:
    questions = [["Image: ", picture(seed, (48, 48)), "?" * 20] for seed in range(4)]
    tokens = 60
    longest = max(len(model.prompt(parts)) for parts in questions) + tokens
    kinds = {*(getattr(model.small.model.config.get_text_config(), "layer_types", None) or "a")}
    pages = len(kinds) * (2 * -(-longest // PAGE) + 2)
    async with serving(model, Mode.MIXED, num_pages=pages, forecast=Forecast.NONE) as service:
        await asyncio.gather(*(service.check(parts, tokens) for parts in questions))
        assert sum(stats.preemptions for stats in await service.cluster.stats())


async def test_answers_offline_are_the_same(model: VisionModel) -> None:
    parts = ["Look: ", RED, BLUE, "?"]
    asked = model.expected(parts)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    content = [_part("Look: "), {"type": "image_pil", "image_pil": RED}, _part(BLUE), _part("?")]
    with LLM(str(model.small.folder), device="cpu", dtype="float32", kv_pool_tokens=1024) as llm:
        [said] = llm.chat([{"role": "user", "content": content}], params, progress=False)
        plain = {"prompt": model.rendered(parts), "multi_modal_data": {"image": [RED, BLUE]}}
        [generated] = llm.generate(plain, params, progress=False)
        assert said.prompt_token_ids == generated.prompt_token_ids == asked.prompt
        assert said.outputs[0].token_ids == generated.outputs[0].token_ids == asked.answer
        with pytest.raises(ValueError, match="for 2 images"):
            llm.generate(plain | {"prompt": "no placeholder"}, params, progress=False)


async def test_the_card_of_the_model_says_that_it_takes_images(service: Service) -> None:
    [card] = (await service.client.get("/v1/models")).json()["data"]
    assert card["no_images"] == ""
