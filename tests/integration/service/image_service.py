"""A cluster that answers questions about images, whose answers are compared with transformers'."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import httpx
from PIL import Image

from engine.model_config.model_spec import ModelSpec
from router.api.media.images import Images, ImageSettings
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.integration.service.vision_models import TOKENS, VisionModel
from tests.tiny_vision import file_of

RED, BLUE = (Image.new("RGB", (40, 40), colour) for colour in ("red", "blue"))
PAGE: Final = 16
_TIMEOUT_S: Final = 120

Parts = Sequence[str | Image.Image]


class ImageService:
    def __init__(self, client: httpx.AsyncClient, model: VisionModel, cluster: LocalCluster) -> None:
        self.client, self.model, self.cluster = client, model, cluster

    async def answer(self, parts: Parts, **more: Any) -> dict[str, Any]:
        body = {
            "messages": [{"role": "user", "content": [part_of(part) for part in parts]}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        response = await self.client.post("/v1/chat/completions", json=body | more)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def check(self, parts: Parts, tokens: int = TOKENS) -> int:
        """Cached tokens of an answer that is right."""
        asked, found = self.model.expected(parts, tokens), await self.answer(parts, max_tokens=tokens)
        assert found["prompt_token_ids"] == asked.prompt
        assert found["choices"][0]["token_ids"] == asked.answer
        assert found["usage"]["prompt_tokens"] == len(asked.prompt)
        cached: int = found["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached


def part_of(part: str | Image.Image) -> dict[str, Any]:
    """A part of a message in OpenAI's form."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = f"data:image/png;base64,{base64.b64encode(file_of(part)).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@asynccontextmanager
async def serving(model: VisionModel, mode: Mode, **settings: Any) -> AsyncIterator[ImageService]:
    """`settings`: see `local_cluster`."""
    async with AsyncExitStack() as stack:
        vision = ModelSpec.from_folder(model.small.folder).vision
        assert vision is not None
        images = Images(model.small.folder, ImageSettings(processes=1, arrays=sorted(vision.arrays)))
        stack.push_async_callback(images.close)
        await images.start()
        cluster = await stack.enter_async_context(local_cluster(model.small, mode, images=images, **settings))
        client = httpx.AsyncClient(base_url=cluster.url, timeout=_TIMEOUT_S)
        yield ImageService(await stack.enter_async_context(client), model, cluster)
        await cluster.all_pages_back()
