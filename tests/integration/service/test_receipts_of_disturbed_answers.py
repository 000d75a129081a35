"""Whatever happens to an answer on its way, its receipt is that of an undisturbed one."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import Forecast, SpeculationConfig
from router.api.generation.audit.receipts import Presented
from router.config.choices import Mode, UpdateMode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.auditing import until, verdict
from tests.integration.service.test_receipts import body_of, found, receipt_of

PATH = "/v1/completions"
LONG = {"temperature": 1.0, "seed": 5, "max_tokens": 400, "ignore_eos": True}


class Asked:
    """A streamed request."""

    def __init__(self, cluster: LocalCluster, small: SmallModel, **more: Any) -> None:
        self.texts = 0
        body = body_of(PATH, small, **LONG | more)
        self._task = asyncio.create_task(self._read(cluster.url, body | {"stream": True}))

    async def _read(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        events: list[Any] = []
        async with (
            httpx.AsyncClient(base_url=url, timeout=60.0) as client,
            client.stream("POST", PATH, json=body) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line.removeprefix("data: ")))
                    self.texts += 1
        (receipt,) = found(events)
        return dict(receipt)

    async def begun(self, count: int = 5) -> None:
        async with asyncio.timeout(20.0):
            while self.texts < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def receipt(self) -> dict[str, Any]:
        return await self._task


@pytest.fixture
async def undisturbed(small: SmallModel) -> dict[str, Any]:
    async with local_cluster(small, Mode.MIXED) as cluster:
        return await receipt_of(cluster, PATH, small, **LONG)


def decoding(cluster: LocalCluster) -> str:
    """The worker that computes the answer."""
    dispatcher: Any = cluster.generation._dispatcher
    (attempt,) = dispatcher.answers._running
    return str(attempt.decoder.worker_id)


@pytest.mark.parametrize("mode", [Mode.MIXED, Mode.DISAGG])
async def test_after_a_lost_worker(small: SmallModel, undisturbed: dict[str, Any], mode: Mode) -> None:
    async with local_cluster(small, mode, each=2) as cluster:
        asked = Asked(cluster, small)
        await asked.begun()
        (worker,) = (each for each in cluster.workers if each.worker_id == decoding(cluster))
        await worker.host.stop()
        assert await asked.receipt() == undisturbed
        await worker.host.start()


async def test_after_a_migration(small: SmallModel, undisturbed: dict[str, Any]) -> None:
    async with local_cluster(small, Mode.DISAGG, each=2) as cluster:
        asked = Asked(cluster, small)
        await asked.begun()
        before = decoding(cluster)
        dispatcher: Any = cluster.generation._dispatcher
        assert await dispatcher.migrate_from(before, 10.0) == 1
        assert await asked.receipt() == undisturbed


@pytest.mark.parametrize("mode", [Mode.MIXED, Mode.DISAGG])
async def test_after_preemptions(small: SmallModel, undisturbed: dict[str, Any], mode: Mode) -> None:
    """Receipts of answers that were preempted are those of undisturbed ones, and verified as such."""
    more = {"max_tokens": 120}
    async with local_cluster(small, Mode.MIXED) as cluster:
        right = [await receipt_of(cluster, PATH, small, **LONG | more | {"seed": n}) for n in range(8)]
    async with local_cluster(small, mode, num_pages=30, forecast=Forecast.NONE) as cluster:
        asked = [Asked(cluster, small, **more, seed=n) for n in range(8)]
        receipts = [await each.receipt() for each in asked]
        assert sum(stats.preemptions for stats in await cluster.stats())
        assert receipts == right
        for receipt in receipts[:2]:
            found, text = await verdict(cluster, receipt)
            assert found["outcome"] == "equal", text
        await cluster.all_pages_back()


async def test_an_answer_is_verified_by_one_that_is_moved(
    small: SmallModel, undisturbed: dict[str, Any]
) -> None:
    async with local_cluster(small, Mode.DISAGG, each=2) as cluster:
        asked = asyncio.create_task(verdict(cluster, undisturbed))
        dispatcher: Any = cluster.generation._dispatcher
        await until(lambda: [each for each in dispatcher.answers._running if each.decoder is not None])
        assert await dispatcher.migrate_from(decoding(cluster), 10.0) == 1
        found, text = await asked
        assert found["outcome"] == "equal", text


async def test_with_drafts_and_cached_prefixes(small: SmallModel, undisturbed: dict[str, Any]) -> None:
    speculation = SpeculationConfig(num_draft_tokens=3)
    async with local_cluster(small, Mode.DISAGG, speculation=speculation) as cluster:
        for _ in range(2):
            assert await receipt_of(cluster, PATH, small, **LONG) == undisturbed


@pytest.mark.parametrize("how", UpdateMode)
async def test_an_update_of_the_weights_divides_the_answer_into_spans(
    small: SmallModel, tmp_path: Path, undisturbed: dict[str, Any], how: UpdateMode
) -> None:
    shutil.copytree(small.folder, tmp_path / "changed")
    values = load_file(small.folder / "model.safetensors")
    torch.manual_seed(1)
    changed = {name: v + 0.3 * torch.randn_like(v) if v.dim() > 1 else v for name, v in values.items()}
    save_file(changed, tmp_path / "changed" / "model.safetensors", metadata={"format": "pt"})
    async with local_cluster(small, Mode.MIXED, each=2, update_mode=how) as cluster:
        asked = Asked(cluster, small)
        await asked.begun()
        await cluster.weights.update(str(tmp_path / "changed"), "2")
        receipt = await asked.receipt()
        later = await receipt_of(cluster, PATH, small, **LONG)
    assert Presented.read(receipt).changes() == []
    spans, (new,) = receipt["weights"], later["weights"]
    assert spans[0] == undisturbed["weights"][0]
    assert new["version"] == "2"
    if len(spans) == 1:  # its worker computed all of it before it was updated
        assert receipt["token_ids"] == undisturbed["token_ids"]
        return
    assert spans[1] == new | {"first": spans[1]["first"]}
    first = spans[1]["first"]
    assert 0 < first < LONG["max_tokens"]
    assert receipt["token_ids"][:first] == undisturbed["token_ids"][:first]
    assert receipt["token_ids"] != undisturbed["token_ids"]
