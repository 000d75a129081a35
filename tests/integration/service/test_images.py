"""Images over HTTP: answers of SmolVLM in one process and with a handoff, and what is told of images."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from router.config.choices import Mode
from tests.integration.service.image_service import PAGE, ImageService, serving
from tests.integration.service.vision_models import TOKENS, VisionModel
from tests.tiny_vision import picture


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[Mode.MIXED, Mode.DISAGG])
async def service(request: pytest.FixtureRequest, smolvlm: VisionModel) -> AsyncIterator[ImageService]:
    async with serving(smolvlm, request.param) as found:
        yield found


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
async def test_an_answer_is_transformers(service: ImageService, parts: list[Any]) -> None:
    if any(isinstance(part, Image.Image) for part in parts):
        await service.check(parts)
        cached = await service.check(parts)
        assert cached >= len(service.model.prompt(parts)) - PAGE - 1
    else:
        assert (await service.answer(parts))["usage"]["completion_tokens"] == TOKENS


async def test_the_time_of_an_encode_is_in_the_timeline(service: ImageService) -> None:
    image = picture(77, (50, 50))
    parts = ["Where? ", image, " and ", image, " and ", picture(78)]
    found = (await service.answer(parts, timings=True))["timings"]
    [span, other] = found["encodes"]
    assert 0 < span["end_s"] - span["begin_s"] <= found["encode_s"] <= found["prefill_s"]
    assert 0 < span["begin_s"] < span["end_s"] <= other["begin_s"] < other["end_s"] <= found["ttft_s"]
    prompt = service.model.prompt(parts)
    row = service.model.row_id
    assert row in prompt[span["first_token"] : span["first_token"] + span["num_tokens"]]
    again = (await service.answer([*parts, "?"], timings=True))["timings"]
    assert (again["encodes"], again["encode_s"]) == ([], 0)


async def test_workers_count_images_encoded_and_looked_up(service: ImageService) -> None:
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
        text = (await service.client.get(f"http://{session.info.metrics_address}/metrics")).text
        counted += sum(float(n) for n in re.findall(r"^baton_encode_seconds_count\{.*\} (.*)$", text, re.M))
    assert counted == (await counts())[0]


async def test_a_damaged_image_is_a_400_with_the_reason(service: ImageService) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    response = await service.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_image"
    assert "Image 1 of the request cannot be used" in response.json()["error"]["message"]
