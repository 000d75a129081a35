"""Images that an encode worker encodes: answers are transformers', whatever happens to the rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from threading import Event
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from engine.core.media import MediaItem
from router.config.choices import Mode
from tests.integration.service.encoders import Encoders, encoding_service
from tests.integration.service.image_service import BLUE, RED
from tests.integration.service.vision_models import VisionModel
from tests.tiny_vision import picture

_PATIENCE_S = 60.0

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[Mode.MIXED, Mode.DISAGG])
async def service(request: pytest.FixtureRequest, smolvlm: VisionModel) -> AsyncIterator[Encoders]:
    async with encoding_service(smolvlm, request.param) as running:
        yield running


@pytest.mark.parametrize(
    "parts",
    [
        ["What is this? ", picture(1)],
        [picture(2, (64, 64)), picture(3, (10, 70)), " and ", picture(2, (64, 64)), "?" * 200],
        ["Which? ", RED, BLUE, "first?"],
        ["Which? ", BLUE, RED, "first?"],
    ],
    ids=["one", "one of them twice", "two", "the other way round"],
)
async def test_an_answer_is_transformers_with_rows_of_the_encode_worker(
    service: Encoders, parts: list[Any]
) -> None:
    before, encoded = await service.outcomes(), await service.images_encoded(by_encoder=False)
    await service.check(parts)
    grown = await service.grown(before)
    assert set(grown) <= {"fetched"}
    assert await service.images_encoded(by_encoder=False) == encoded


async def test_an_image_is_encoded_once_and_its_rows_are_kept_on_both_sides(service: Encoders) -> None:
    image, before = picture(300, (33, 60)), await service.outcomes()
    await service.check(["a ", image])
    await service.check(["another ", image, " here"])
    assert await service.grown(before) == {"fetched": 1}


async def test_a_prefix_that_ends_within_an_image_is_used(service: Encoders) -> None:
    first, second = picture(301, (64, 64)), picture(302, (64, 64))
    await service.check(["x ", first, "first"])
    assert await service.check(["x ", first, second, "second"]) > 16


async def test_the_timeline_has_the_encode_and_the_way_of_the_rows(service: Encoders) -> None:
    found = (await service.answer(["When? ", picture(303), " or ", picture(304)], timings=True))["timings"]
    assert found["encode_worker"] == "encode-0"
    assert len(found["encodes"]) == len(found["row_transfers"]) == 2
    assert found["encode_s"] > 0
    for encode, came in zip(found["encodes"], found["row_transfers"], strict=True):
        assert 0 < encode["begin_s"] < encode["end_s"] <= came["end_s"] <= found["ttft_s"]


async def test_the_text_before_an_image_is_computed_while_the_image_is_encoded(
    service: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, released = _hold(service, monkeypatch)
    parts = ["word " * 60, picture(305)]
    prompt = service.model.expected(parts).prompt
    row = service.model.row_id
    cached = 64  # at most, of the beginning of all chats
    before = await _computed_tokens(service)
    asking = asyncio.create_task(service.check(parts))
    try:
        await _until(held.is_set)
        async with asyncio.timeout(_PATIENCE_S):
            while await _computed_tokens(service) - before < prompt.index(row) - cached:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert not asking.done()
        assert await _computed_tokens(service) - before <= prompt.index(row)
    finally:
        released.set()
    await asking


async def test_other_requests_are_computed_while_one_waits_for_its_image(
    service: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, released = _hold(service, monkeypatch)
    asking = asyncio.create_task(service.check([picture(306), " waits"]))
    try:
        await _until(held.is_set)
        answer = await service.answer(["no image", "z" * 300])
        assert answer["usage"]["completion_tokens"]
        assert not asking.done()
    finally:
        released.set()
    await asking


async def test_rows_that_were_changed_on_the_way_are_not_used(
    service: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    from encode_worker import rows_service

    parts_of = rows_service.parts_of

    def tampered(*given: Any) -> Any:
        for part in parts_of(*given):
            if part.data:
                part.data = part.data[:8] + bytes([part.data[8] ^ 1]) + part.data[9:]
            yield part

    monkeypatch.setattr(rows_service, "parts_of", tampered)
    before = await service.outcomes()
    await service.check(["changed ", picture(307)])
    assert await service.grown(before) == {"digest": 1}


@pytest.mark.parametrize(
    ("number", "changed", "reason"),
    [
        (311, lambda e: e._replace(item=bytes(32)), "item"),
        (312, lambda e: e._replace(rows=e.rows[:-1]), "shape"),
        (313, lambda e: e._replace(rows=e.rows[:, ::2]), "shape"),
        (314, lambda e: e._replace(weights="others"), "weights"),
    ],
    ids=["another image", "too few", "too narrow", "other weights"],
)
async def test_rows_of_something_else_are_not_used(
    service: Encoders,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    changed: Callable[[Any], Any],
    reason: str,
) -> None:
    handouts = service.handouts
    give = handouts.give
    monkeypatch.setattr(handouts, "give", lambda ticket, encoded: give(ticket, changed(encoded)))
    before = await service.outcomes()
    await service.check(["not these ", picture(number)])
    assert await service.grown(before) == {reason: 1}


async def test_rows_that_are_refused_are_computed_where_the_prompt_is(
    service: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.errors import UnservableRequest

    def refused(_item: MediaItem) -> None:
        raise UnservableRequest("not today")

    monkeypatch.setattr(service.media()._tower, "rows", refused)
    before = await service.outcomes()
    await service.check(["refused ", picture(320)])
    assert await service.grown(before) == {"refused": 1}


async def test_an_image_is_encoded_where_the_prompt_is_if_its_rows_do_not_come_in_time(
    service: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, released = _hold(service, monkeypatch, patience_s=0.5)
    before = await service.outcomes()
    try:
        await service.check(["late ", picture(321)])
        assert held.is_set()
    finally:
        released.set()
    assert await service.grown(before) == {"timeout": 1}


async def test_an_encode_worker_that_ends_within_an_encode_costs_no_answer(
    service: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, released = _hold(service, monkeypatch)
    before = await service.outcomes()
    asking = asyncio.create_task(service.check(["lost ", picture(322), picture(323)]))
    await _until(held.is_set)
    released_later = asyncio.get_running_loop().call_later(1.0, released.set)  # the engine thread is joined
    await service.encoder.host._peer_server.stop()
    await service.encoder.restart()
    released_later.cancel()
    released.set()
    await asking
    assert await service.grown(before) == {"lost": 2}
    async with asyncio.timeout(_PATIENCE_S):
        while not service.cluster.registry.all_ready():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    before = await service.outcomes()
    await service.check(["back ", picture(324)])
    assert await service.grown(before) == {"fetched": 1}


def _hold(
    service: Encoders, monkeypatch: pytest.MonkeyPatch, *, patience_s: float = 2 * _PATIENCE_S
) -> tuple[Event, Event]:
    """Set when the encode worker begins an image; to be set to let it go on. `patience_s`: for rows."""
    monkeypatch.setattr("router.dispatch.encodes.remote_encode._LEAST_S", patience_s)
    held, released = Event(), Event()
    tower = service.media()._tower
    rows = tower.rows

    def late(item: MediaItem) -> Any:
        held.set()
        assert released.wait(4 * _PATIENCE_S)
        return rows(item)

    monkeypatch.setattr(tower, "rows", late)
    return held, released


async def _computed_tokens(service: Encoders) -> int:
    return sum([(await s.stats()).prompt_tokens for s in service.cluster.registry.computing()])


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_images_of_tests_differ() -> None:
    images: list[Image.Image] = [picture(number) for number in range(300, 325)]
    assert len({image.tobytes() for image in images}) == len(images)
