"""Images over HTTP for a family of each kind: answers are transformers', in one process or with a handoff.

`test_images` has what is not a matter of the family.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from baton import LLM, SamplingParams
from engine.config import Forecast
from router.config.choices import Mode
from tests.integration.service.image_service import BLUE, PAGE, RED, ImageService, part_of, serving
from tests.integration.service.vision_models import TOKENS, VisionModel
from tests.tiny_vision import picture

KINDS = {
    "smolvlm": Mode.MIXED,  # tiles
    "gemma3": Mode.DISAGG,  # bidirectional
    "gemma4": Mode.DISAGG,  # padded patches
    "qwen2_5_vl": Mode.DISAGG,  # M-RoPE
    "qwen3_vl": Mode.DISAGG,  # deepstack
}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return VisionModel(request.param, tmp_path_factory.mktemp(request.param))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(model: VisionModel) -> AsyncIterator[ImageService]:
    """With a handoff, the decode worker gets no pixels."""
    async with serving(model, KINDS[model.model_type]) as found:
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
async def test_an_answer_is_transformers(service: ImageService, parts: list[Any]) -> None:
    await service.check(parts)
    cached = await service.check(parts)
    assert cached >= len(service.model.prompt(parts)) - PAGE - 1


async def test_a_text_without_images_is_answered(service: ImageService) -> None:
    await service.check(["no image at all"])


async def test_a_blue_image_is_not_answered_as_the_red_one_before_it(service: ImageService) -> None:
    question = "Colour? ", "Answer:"
    red, blue = ([question[0], image, question[1]] for image in (RED, BLUE))
    asked = [service.model.expected(parts) for parts in (red, blue)]
    assert asked[0].prompt == asked[1].prompt
    assert asked[0].answer != asked[1].answer
    await service.check(red)
    cached = await service.check(blue)
    assert cached <= asked[1].prompt.index(service.model.row_id)
    assert await service.check(red) > cached


async def test_two_images_of_equal_size_may_change_places(service: ImageService) -> None:
    for _ in range(2):
        await service.check([RED, BLUE, "first?"])
        await service.check([BLUE, RED, "first?"])


async def test_a_prefix_hit_ends_within_an_image(service: ImageService) -> None:
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


async def test_tokenize_counts_as_usage_does(service: ImageService) -> None:
    parts = ["a", picture(5), "b", picture(7, (20, 50))]
    messages = [{"role": "user", "content": [part_of(part) for part in parts]}]
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
    content = [part_of("Look: "), {"type": "image_pil", "image_pil": RED}, part_of(BLUE), part_of("?")]
    with LLM(str(model.small.folder), device="cpu", dtype="float32", kv_pool_tokens=1024) as llm:
        [said] = llm.chat([{"role": "user", "content": content}], params, progress=False)
        plain = {"prompt": model.rendered(parts), "multi_modal_data": {"image": [RED, BLUE]}}
        [generated] = llm.generate(plain, params, progress=False)
        assert said.prompt_token_ids == generated.prompt_token_ids == asked.prompt
        assert said.outputs[0].token_ids == generated.outputs[0].token_ids == asked.answer
        with pytest.raises(ValueError, match="for 2 images"):
            llm.generate(plain | {"prompt": "no placeholder"}, params, progress=False)


async def test_the_card_of_the_model_says_that_it_takes_images(service: ImageService) -> None:
    [card] = (await service.client.get("/v1/models")).json()["data"]
    assert card["no_images"] == ""
