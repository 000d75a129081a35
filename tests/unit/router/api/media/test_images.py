"""Images of requests: decoded in processes with limits, cached, and refused with the reason."""

from __future__ import annotations

import asyncio
import base64
import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from router.api.media.errors import ImageError, ImageProcessorFailed
from router.api.media.images import Images, ImageSettings
from router.api.media.marks import ImageSource
from router.api.media.sources import AllowedSources
from router.errors import InvalidRequest
from tests.tiny_vision import file_of, picture, save_vision_files
from tests.unit.router.api.media.test_decode import HOSTILE


def source(file: bytes, **about: str) -> ImageSource:
    return ImageSource(f"data:image/png;base64,{base64.b64encode(file).decode()}", **about)


@pytest.fixture
async def images(tmp_path: Path) -> AsyncIterator[Images]:
    save_vision_files("qwen2_5_vl", tmp_path)
    images = Images(tmp_path, ImageSettings(processes=1, limit=64, cache_bytes=200_000))
    await images.start()
    yield images
    await images.close()


def process_of(images: Images) -> int | None:
    return images._turns.processes[0].pid


def peak_kib(pid: int | None) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


async def refusal_of(images: Images, *sources: ImageSource) -> str:
    with pytest.raises(InvalidRequest) as refusal:
        await images.processed(sources, "")
    return refusal.value.message


async def test_hostile_files_are_refused_by_one_process_which_lives_on(images: Images) -> None:
    pid = process_of(images)
    for file, _ in HOSTILE.values():
        message = await refusal_of(images, source(file_of(picture())), source(file))
        assert message.startswith("Image 2 of the request cannot be used: ")
    assert process_of(images) == pid
    [image] = await images.processed([source(file_of(picture()))], "")
    assert image.rows == 20


async def test_a_large_image_stays_within_the_memory_of_its_process(images: Images) -> None:
    large = Image.new("RGB", (9000, 5500), "red")
    [image] = await images.processed([source(file_of(large, "PNG", compress_level=1))], "")
    assert image.rows > 0
    pid = process_of(images)
    assert peak_kib(pid) < 1_600_000


async def test_work_that_exceeds_its_memory_is_refused_and_the_next_is_done(images: Images) -> None:
    pid = process_of(images)
    assert pid is not None
    resource.prlimit(pid, resource.RLIMIT_DATA, (1 << 20, 1 << 20))
    assert "memory" in await refusal_of(images, source(file_of(Image.new("RGB", (6000, 6000)))))
    with suppress(ProcessLookupError):  # it may have ended for want of memory
        os.kill(pid, 9)
    assert await images.processed([source(file_of(picture()))], "")
    assert process_of(images) != pid


async def test_the_event_loop_goes_on_while_images_are_decoded(images: Images) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2000, 2000, 3), dtype=np.uint8)
    work = asyncio.create_task(images.processed([source(file_of(Image.fromarray(noise)))], ""))
    turns = 0
    while not work.done():
        await asyncio.sleep(0.001)
        turns += 1
    await work
    assert turns > 20


async def test_an_image_is_processed_once_and_the_cache_is_bounded(images: Images) -> None:
    first = await images.processed([source(file_of(picture(1)))] * 3, "")
    assert first[0] is first[1] is first[2]
    [low] = await images.processed([source(file_of(picture(1)), detail="low")], "")
    assert low is not first[0]
    for seed in range(2, 12):
        await images.processed([source(file_of(picture(seed)))], "")
    assert images._cached_bytes <= 200_000
    [again] = await images.processed([source(file_of(picture(1)))], "")
    assert again is not first[0]
    assert again.item == first[0].item


async def test_a_uuid_names_the_latest_image_that_its_tenant_sent_with_it(images: Images) -> None:
    assert "no image with the uuid 'cat'" in await refusal_of(images, ImageSource("", uuid="cat"))
    [first] = await images.processed([source(file_of(picture(1)), uuid="cat")], "a")
    [second] = await images.processed([source(file_of(picture(2)), uuid="cat")], "b")
    for tenant, image in (("a", first), ("b", second)):
        assert await images.processed([ImageSource("", uuid="cat")], tenant) == [image]
    [third] = await images.processed([source(file_of(picture(3)), uuid="cat")], "a")
    assert await images.processed([ImageSource("", uuid="cat")], "a") == [third]
    assert first.item.digest != third.item.digest


async def test_low_detail_shrinks_the_image(images: Images) -> None:
    file = file_of(Image.new("RGB", (2000, 900), "blue"))
    [low] = await images.processed([source(file, detail="low")], "")
    [small] = await images.processed([source(file_of(Image.new("RGB", (512, 230), "blue")))], "")
    assert low.item.digest == small.item.digest


async def test_more_images_than_the_limit_are_refused_before_any_is_looked_at(images: Images) -> None:
    assert "65 images; at most 64" in await refusal_of(images, *[source(b"")] * 65)


async def test_urls_of_other_kinds_are_refused(images: Images, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(file_of(picture()))
    urls = {
        f"file://{tmp_path}/image.png": "--allowed-local-media-path",
        "http://169.254.169.254/latest": "--allowed-media-domains",
        "https://example.com/a.png": "--allowed-media-domains",
        "ftp://example.com/a.png": "none of data:",
        "/etc/passwd": "none of data:",
        "data:image/png;base64": "no comma",
        "data:image/png;base64,???": "not base64",
    }
    for url, reason in urls.items():
        assert reason in await refusal_of(images, ImageSource(url))


async def test_files_are_read_below_the_allowed_folder_only(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret.png"
    allowed.mkdir()
    secret.write_bytes(b"secret")
    (allowed / "a b.png").write_bytes(b"content")
    (allowed / "link.png").symlink_to(secret)
    os.mkfifo(allowed / "pipe")
    sources = AllowedSources(folder=allowed)
    assert await sources.file(f"file://{allowed}/a%20b.png") == b"content"
    for path in ("../secret.png", "%2e%2e/secret.png", "link.png", "pipe", "none.png", "", "a\0b"):
        with pytest.raises(ImageError):
            await sources.file(f"file://{allowed}/{path}")
    with pytest.raises(ImageError):
        await sources.file(f"file://host{allowed}/a%20b.png")


async def test_a_folder_without_a_processor_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    images = Images(tmp_path, ImageSettings(processes=1))
    with pytest.raises(ImageProcessorFailed, match=str(tmp_path)):
        await images.start()
    began = time.monotonic()
    await images.close()
    assert time.monotonic() - began < 60


async def test_images_of_one_request_are_processed_at_the_same_time(tmp_path: Path) -> None:
    save_vision_files("smolvlm", tmp_path)
    images = Images(tmp_path, ImageSettings(processes=3))
    await images.start()
    running = most = 0
    turn = images._turns.process

    @asynccontextmanager
    async def counted(tenant: str) -> AsyncIterator[Any]:
        nonlocal running, most
        async with turn(tenant) as process:
            running += 1
            most = max(most, running)
            yield process
            running -= 1

    images._turns.process = counted  # type: ignore[method-assign, assignment]
    try:
        files = [file_of(picture(number)) for number in range(6)]
        found = await images.processed([source(file) for file in files], "a")
        assert most == 2  # one is left to other tenants
        alone = [(await images.processed([source(file)], "b"))[0] for file in files]
        assert [one.item.digest for one in found] == [one.item.digest for one in alone]
    finally:
        await images.close()
