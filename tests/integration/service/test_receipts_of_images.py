"""Receipts of prompts with images: verified with the request that has the images, and replayed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from baton import LLM, SamplingParams
from engine.model_config.model_spec import ModelSpec
from router.api.generation.audit.receipts import Presented
from router.api.generation.audit.record_file import RecordFile
from router.api.media.images import Images, ImageSettings
from router.api.media.marks import ImageSource
from router.command.audit.computing import OnService
from router.command.audit.replay import Replayed, read_log, replay
from router.command.audit.request_images import images_of_body
from router.command.client.api import ApiClient
from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.integration.service.auditing import resealed, sealed, verdict
from tests.integration.service.test_receipts import found, post
from tests.integration.service.test_verify import ran
from tests.integration.service.vision_models import VisionModel
from tests.tiny_vision import file_of, picture

KINDS = ("smolvlm", "qwen3_vl")
SAMPLED = {"temperature": 1.0, "seed": 5, "max_tokens": 20, "ignore_eos": True}
CHAT = "/v1/chat/completions"
ONE, TWO, OTHER = picture(1), picture(2), picture(3)


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return VisionModel(request.param, tmp_path_factory.mktemp(request.param))


@asynccontextmanager
async def serving(model: VisionModel, mode: Mode, **settings: Any) -> AsyncIterator[LocalCluster]:
    async with AsyncExitStack() as stack:
        vision = ModelSpec.from_folder(model.small.folder).vision
        assert vision is not None
        images = Images(model.small.folder, ImageSettings(processes=1, arrays=sorted(vision.arrays)))
        stack.push_async_callback(images.close)
        await images.start()
        yield await stack.enter_async_context(local_cluster(model.small, mode, images=images, **settings))


def encoded(image: Image.Image) -> str:
    return base64.b64encode(file_of(image)).decode()


def url_of(image: Image.Image) -> str:
    return f"data:image/png;base64,{encoded(image)}"


def chat(*images: Image.Image, **more: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url_of(i)}} for i in images]
    content = [{"type": "text", "text": "See "}, *parts, {"type": "text", "text": " and say"}]
    return {"messages": [{"role": "user", "content": content}], "receipt": True, **SAMPLED, **more}


def responses(*images: Image.Image) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "input_image", "image_url": url_of(image)} for image in images]
    content = [{"type": "input_text", "text": "See "}, *parts, {"type": "input_text", "text": " and say"}]
    return {"input": [{"role": "user", "content": content}], "receipt": True, "max_output_tokens": 20}


def messages(*images: Image.Image) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png"}
    parts = [{"type": "image", "source": source | {"data": encoded(image)}} for image in images]
    content = [{"type": "text", "text": "See "}, *parts, {"type": "text", "text": " and say"}]
    body = {"model": "small", "messages": [{"role": "user", "content": content}], "max_tokens": 20}
    return {**body, "receipt": True}


def images_in(body: dict[str, Any]) -> list[ImageSource]:
    return list(images_of_body(json.dumps(body).encode()))


async def receipt_of(cluster: LocalCluster, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await post(cluster, path, body)
    assert answer.status_code == 200, answer.text
    (receipt,) = found(answer.json())
    return receipt


@pytest.mark.parametrize("mode", [Mode.MIXED, Mode.DISAGG])
async def test_an_answer_about_images_is_verified_with_its_request(
    model: VisionModel, mode: Mode, tmp_path: Path
) -> None:
    body = chat(ONE, TWO)
    async with serving(model, mode) as cluster:
        for path, asked in (
            (CHAT, body),
            ("/v1/responses", responses(ONE, TWO)),
            ("/v1/messages", messages(ONE, TWO)),
        ):
            receipt = await receipt_of(cluster, path, asked)
            assert len(receipt["media"]) == 2
            assert Presented.read(receipt).changes() == []
            result, text = await verdict(cluster, receipt, images=images_in(asked))
            assert result["outcome"] == "equal", (path, text)
            result, text = await verdict(cluster, receipt)
            assert result["outcome"] == "not_comparable"
            assert "--request" in result["reason"]
        receipt = await receipt_of(cluster, CHAT, body)
        for wrong in (chat(TWO, ONE), chat(ONE, OTHER)):
            result, text = await verdict(cluster, receipt, images=images_in(wrong))
            assert result["outcome"] == "differs"
            assert "media.1" in result["fields"]
        result, text = await verdict(cluster, receipt, images=images_in(chat(ONE)))
        assert "the request has 1 images, the prompt of the receipt 2" in text
        large = chat(ONE, picture(2, (200, 120)))
        result, text = await verdict(cluster, receipt, images=images_in(large))
        assert result["outcome"] != "equal"
        assert "images" in text or "media.1" in text
        await changed_fields_are_named(cluster, receipt, images_in(body))
        digests = await receipt_of(cluster, CHAT, body | {"receipt": "digests"})
        prompt, images = receipt["prompt_token_ids"], images_in(body)
        result, text = await verdict(cluster, digests, prompt=prompt, images=images)
        assert result["outcome"] == "equal", text
        (tmp_path / "receipt.json").write_text(json.dumps(receipt))
        (tmp_path / "request.json").write_text(json.dumps(body))
        status, [line] = await ran(
            tmp_path / "receipt.json", "--url", cluster.url, "--request", str(tmp_path / "request.json")
        )
        assert (status, line["outcome"]) == (0, "equal")
        await cluster.all_pages_back()


async def changed_fields_are_named(
    cluster: LocalCluster, receipt: dict[str, Any], images: list[ImageSource]
) -> None:
    first, second = receipt["media"]
    for media in (
        [first | {"digest": "ab" * 32}, second],
        [first | {"offset": first["offset"] + 1}, second],
        [first, second | {"length": second["length"] - 1}],
        [second, first],
        [first],
        [first | {"offset": 1 << 40}, second],
    ):
        result, text = await verdict(cluster, sealed(receipt | {"media": media}), images=images)
        assert result["outcome"] != "equal"
        assert "media" in text, text
        result, text = await verdict(cluster, resealed(receipt | {"media": media}), images=images)
        assert result["outcome"] != "equal"
        assert "media" in text, text
    tokens = [*receipt["token_ids"][:7], receipt["token_ids"][7] ^ 1, *receipt["token_ids"][8:]]
    result, text = await verdict(cluster, resealed(receipt | {"token_ids": tokens}), images=images)
    assert result["difference"]["position"] == 7
    seed = receipt["sampling"] | {"seed": "6"}
    result, text = await verdict(cluster, sealed(receipt | {"sampling": seed}), images=images)
    assert result["outcome"] == "differs"


async def test_a_receipt_of_this_process_has_the_images_too(model: VisionModel) -> None:
    async with serving(model, Mode.MIXED) as cluster:
        body = chat(ONE, TWO)
        receipt = await receipt_of(cluster, CHAT, body)
    with LLM(str(model.small.folder), device="cpu", dtype="float32", max_model_len=2048) as llm:
        params = SamplingParams(temperature=1.0, seed=5, max_tokens=20, ignore_eos=True)
        (answer,) = llm.chat(body["messages"], params, receipt=True, progress=False)
    offline = answer.outputs[0].receipt
    assert offline is not None
    different = {name for name in receipt if offline[name] != receipt[name]}
    assert different <= {"model", "digest"}, different


async def test_requests_with_images_are_replayed(model: VisionModel, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with serving(model, Mode.MIXED) as cluster:
        with RecordFile(log, 1 << 24) as records:
            cluster.generation.records = records
            for path, body in (
                (CHAT, chat(ONE, TWO, n=2)),
                (CHAT, chat(ONE, stream=True)),
                (CHAT, chat()),
                ("/v1/responses", responses(TWO)),
                ("/v1/messages", messages(OTHER, ONE)),
            ):
                await post(cluster, path, {name: v for name, v in body.items() if name != "receipt"})
            named = chat(ONE)
            named["messages"][0]["content"][1] |= {"uuid": "mine"}
            await post(cluster, CHAT, named)
            named["messages"][0]["content"][1]["image_url"] = None
            await post(cluster, CHAT, named)
            cluster.generation.records = None
    async with serving(model, Mode.DISAGG) as cluster:
        results = await replayed(log, cluster)
    assert [each.outcome for each in results] == ["equal"] * 7 + ["not_comparable"], results
    assert "'mine' of the request has only a name" in results[-1].reason
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [len(line.get("images", ())) for line in lines] == [2, 2, 1, 0, 1, 2, 1, 1]
    async with local_cluster(model.small, Mode.MIXED) as cluster:  # a service that takes no images
        results = await replayed(log, cluster)
    assert [each.outcome for each in results].count("equal") == 1
    assert all("images" in each.reason for each in results if each.reason and "name" not in each.reason)


async def replayed(log: Path, cluster: LocalCluster) -> list[Replayed]:
    computer = OnService(ApiClient(cluster.url))
    return await asyncio.to_thread(lambda: list(replay(read_log([log]), computer, 0.0, 1)))


async def test_images_are_placed_in_prompts_of_token_ids(model: VisionModel) -> None:
    async with (
        serving(model, Mode.MIXED) as cluster,
        httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client,
    ):
        right = (await client.post(CHAT, json=chat(ONE, TWO, return_token_ids=True))).json()
        prompt = right["prompt_token_ids"]
        images = [{"url": url_of(ONE)}, {"url": url_of(TWO), "detail": "auto"}]
        body = SAMPLED | {"prompt": prompt, "images": images, "return_token_ids": True}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["choices"][0]["token_ids"] == right["choices"][0]["token_ids"]
        changes: list[dict[str, Any]] = [
            {"images": images[:1]},
            {"prompt": [*prompt, model.row_id]},
            {"prompt": "text"},
            {"prompt": [prompt, prompt]},
            {"images": []},
            {"images": [{"url": "data:image/png;base64,AAAA"}] * 2},
        ]
        for change in changes:
            refused = await client.post("/v1/completions", json=body | change)
            assert refused.status_code == 400, change
            assert refused.json()["error"]["param"] in {"images", "messages"}, refused.text
        long = body | {"prompt": prompt * 200, "images": [{"url": "data:no image"}]}
        refused = await client.post("/v1/completions", json=long)
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        await cluster.all_pages_back()


def test_the_body_of_a_request_is_one_of_an_api() -> None:
    assert [image.url for image in images_in(chat(ONE))] == [url_of(ONE)]
    assert images_in({"prompt": "text"}) == []
    completion = {"prompt": [1, 2], "images": [{"url": "https://host/one.png", "detail": "low"}]}
    assert images_in(completion) == [ImageSource("https://host/one.png", "low")]
    for body in (b"{}", b"nothing", b"[]"):
        with pytest.raises(ValueError, match="belongs to no API"):
            images_of_body(body)
