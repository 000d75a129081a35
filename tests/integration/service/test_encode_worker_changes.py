"""Encode workers beside adapters and new weights, in adaptive mode, and as they come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from engine.config import LoraConfig
from engine.core.media import MediaItem
from router.command.admin.drain import WorkerDrainer
from router.config.choices import Mode, UpdateMode
from router.dispatch.adapters.adapters import ServedAdapters
from router.dispatch.encodes.encode_pool import EncodePool
from tests.faults.support.local_cluster import local_worker
from tests.integration.adapting import shared
from tests.integration.service.changed_weights import Changed, changed_model
from tests.integration.service.encoders import Encoders, encoding_service
from tests.integration.service.vision_models import VisionModel
from tests.tiny_vision import picture
from tests.unit.engine.adapters.peft_oracle import merged, save_adapter
from tests.unit.router.cluster.key_values import KeyValues
from worker.assembly import assemble

_PATIENCE_S = 60.0
_TARGETS = r".*text_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
FLEETS = [(Mode.MIXED, 2), (Mode.DISAGG, 1)]


@pytest.fixture(scope="module")
def changed(smolvlm: VisionModel, tmp_path_factory: pytest.TempPathFactory) -> Changed:
    model = changed_model(smolvlm.small, tmp_path_factory.mktemp("changed") / "model")
    file = model.folder / "model.safetensors"
    values = load_file(file)
    values["lm_head.weight"][smolvlm.row_id :] = 0.0  # never answers with a part of an image
    save_file(values, file, metadata={"format": "pt"})
    return Changed(model.folder, type(smolvlm.small.model).from_pretrained(model.folder).eval())


@pytest.fixture(params=FLEETS, ids=lambda fleet: fleet[0].value)
async def service(request: pytest.FixtureRequest, smolvlm: VisionModel) -> AsyncIterator[Encoders]:
    mode, each = request.param
    async with encoding_service(smolvlm, mode, each=each) as running:
        yield running


def said_by(service: Encoders, model: Any, parts: Sequence[str | Image.Image]) -> list[int]:
    """What transformers answers with other weights."""
    return service.model.expected(parts, weights=model).answer


async def answered(service: Encoders, parts: Sequence[str | Image.Image], **more: Any) -> list[int]:
    found: list[int] = (await service.answer(parts, **more))["choices"][0]["token_ids"]
    return found


# ---------------------------------------------------------------------------------- new weights


@pytest.mark.parametrize("how", UpdateMode)
async def test_rows_of_the_old_weights_are_not_used_with_the_new_ones(
    service: Encoders, changed: Changed, how: UpdateMode
) -> None:
    """The image was encoded before the update, and its rows were kept on both sides."""
    parts = ["Which? ", picture(401), " or ", picture(402)]
    old, new = service.model.expected(parts).answer, said_by(service, changed.model, parts)
    assert old != new
    assert await answered(service, parts) == old
    await service.cluster.weights.update(str(changed.folder), "new", how=how)
    assert {s.info.served.version for s in service.cluster.registry.sessions()} == {"new"}
    before = await service.outcomes()
    assert await answered(service, parts) == new
    assert await service.grown(before) == {"fetched": 2}
    await service.cluster.weights.update(str(service.model.small.folder), "old again", how=how)
    assert await answered(service, parts) == old


@pytest.mark.parametrize("how", UpdateMode)
async def test_an_update_while_an_image_is_encoded_mixes_no_weights(
    service: Encoders, changed: Changed, how: UpdateMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ["While? ", picture(403), " it is ", picture(404)]
    old, new = service.model.expected(parts).answer, said_by(service, changed.model, parts)
    held, released = hold(service, monkeypatch)
    asking = asyncio.create_task(answered(service, parts))
    await until(held.is_set)
    updating = asyncio.create_task(service.cluster.weights.update(str(changed.folder), "new", how=how))
    await asyncio.sleep(0.5)
    released.set()
    assert await asking in (old, new)
    await updating
    assert await answered(service, parts) == new


# ---------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize("mode", [Mode.MIXED, Mode.DISAGG])
async def test_adapters_need_nothing_of_an_encode_worker(
    smolvlm: VisionModel, mode: Mode, tmp_path: Path
) -> None:
    style = save_adapter(
        smolvlm.small.folder,
        tmp_path / "style",
        1,
        kind=AutoModelForImageTextToText,
        size=1.0,
        target_modules=_TARGETS,
    )
    model = merged(smolvlm.small.folder, style, kind=AutoModelForImageTextToText)
    async with adapted(smolvlm, mode) as service:
        adapters = service.cluster.generation.adapters
        assert adapters is not None
        await adapters.load("style", str(style))
        parts = ["In which style? ", picture(410), "!"]
        plain, styled = service.model.expected(parts).answer, said_by(service, model, parts)
        assert plain != styled
        before = await service.outcomes()
        assert await answered(service, parts, model="style") == styled
        assert await answered(service, parts) == plain
        assert await service.grown(before) in ({"fetched": 1}, {"fetched": 2})
        await adapters.unload("style")


@asynccontextmanager
async def adapted(smolvlm: VisionModel, mode: Mode) -> AsyncIterator[Encoders]:
    async with encoding_service(smolvlm, mode, lora=LoraConfig(max_loras=2, max_lora_rank=8)) as service:
        adapters = ServedAdapters(service.cluster.registry, shared(KeyValues()), "small")
        service.cluster.generation.adapters = adapters  # type: ignore[misc]
        running = asyncio.create_task(adapters.run())
        try:
            yield service
        finally:
            running.cancel()


# ---------------------------------------------------------------------------------- fewer and more


async def test_images_are_encoded_where_prompts_are_when_the_last_encode_worker_has_left(
    service: Encoders,
) -> None:
    registry = service.cluster.registry
    await service.check(["here ", picture(420)])
    await WorkerDrainer(registry).drain("encode-0", _PATIENCE_S)
    (leaving,) = [one for one in registry.members() if one.handle.worker_id == "encode-0"]
    await registry.remove(leaving)
    before, encoded = await service.outcomes(), await service.images_encoded(by_encoder=False)
    await service.check(["gone ", picture(421)])
    assert await service.grown(before) == {}
    assert await service.images_encoded(by_encoder=False) == encoded + 1


async def test_an_encode_worker_that_is_added_encodes(service: Encoders) -> None:
    registry = service.cluster.registry
    async with AsyncExitStack() as stack:
        config = service.encoder.host.config
        added = await local_worker(
            replace(config, worker_id="encode-1"), stack, assemble, service.cluster.deaths
        )
        await registry.add(added, "")
        assert await registry.wait_for_all(_PATIENCE_S)
        service.cluster.workers.append(added)
        await WorkerDrainer(registry).drain("encode-0", _PATIENCE_S)
        found = (await service.answer(["there ", picture(422)], timings=True))["timings"]
        assert found["encode_worker"] == "encode-1"
        before = await service.outcomes()
        await service.check(["there ", picture(423)])
        assert await service.grown(before) == {"fetched": 1}
        (leaving,) = [one for one in registry.members() if one.handle.worker_id == "encode-1"]
        await registry.remove(leaving)


async def test_another_encode_worker_takes_over_from_one_that_is_lost(smolvlm: VisionModel) -> None:
    async with encoding_service(smolvlm, Mode.MIXED, encoders=2) as service:
        await service.check(["two ", picture(430), picture(431)])
        lost = service.encoder
        await lost.stop()
        await until(lambda: len(service.cluster.registry.sessions()) == 2)
        before = await service.outcomes()
        found = (await service.answer(["one ", picture(432)], timings=True))["timings"]
        assert found["encode_worker"] == "encode-1"
        await service.check(["one ", picture(433)])
        assert await service.grown(before) == {"fetched": 2}
        await lost.revive()
        assert await service.cluster.registry.wait_for_all(_PATIENCE_S)


# ---------------------------------------------------------------------------------- adaptive


@pytest.mark.parametrize(("seconds", "outcome"), [(0.0, {"fetched": 1}), (1000.0, {})])
async def test_adaptive_mode_encodes_where_it_expects_it_sooner(
    smolvlm: VisionModel, seconds: float, outcome: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with encoding_service(smolvlm, Mode.ADAPTIVE) as service:
        await service.check(["first ", picture(440)])
        monkeypatch.setattr(EncodePool, "_seconds", lambda *_: seconds)
        before = await service.outcomes()
        await service.check(["second ", picture(441)])
        assert await service.grown(before) == outcome


# ---------------------------------------------------------------------------------- inside


def hold(service: Encoders, monkeypatch: pytest.MonkeyPatch) -> tuple[Event, Event]:
    """Set when the encode worker begins an image; to be set to let it go on."""
    held, released = Event(), Event()
    tower = service.media()._tower
    rows = tower.rows

    def late(item: MediaItem) -> Any:
        held.set()
        assert released.wait(4 * _PATIENCE_S)
        return rows(item)

    monkeypatch.setattr(tower, "rows", late)
    return held, released


async def until(condition: Any) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
