"""Receipts of answers with LoRA adapters: verified and replayed by name, and bound to the content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from common.background import cancelled, supervised
from engine.config import LoraConfig
from router.api.generation.audit.record_file import RecordFile
from router.command.audit.computing import OnService
from router.command.audit.replay import read_log, replay
from router.command.client.api import ApiClient
from router.config.choices import Mode
from router.dispatch.adapters.adapters import ServedAdapters
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.adapting import shared
from tests.integration.service.auditing import sealed, verdict
from tests.integration.service.test_receipts import WORDS, body_of, post, prompt_of, receipt_of
from tests.integration.service.test_receipts_of_disturbed_answers import LONG, Asked, decoding
from tests.unit.engine.adapters.peft_oracle import save_adapter
from tests.unit.router.cluster.key_values import KeyValues

PATH = "/v1/completions"
SAMPLED = {"temperature": 1.0, "seed": 3, "max_tokens": 40, "ignore_eos": True}
LORA = LoraConfig(max_loras=2, max_lora_rank=8)


@pytest.fixture(scope="module")
def styles(small: SmallModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters, and one that the end of the prompt activates."""
    folder = tmp_path_factory.mktemp("adapters")
    invocation = prompt_of(small)[-12:-9]
    more: dict[str, dict[str, Any]] = {"late": {"alora_invocation_tokens": invocation}}
    return {
        name: save_adapter(small.folder, folder / name, seed, **more.get(name, {}))
        for seed, name in enumerate(("one", "two", "late"))
    }


@asynccontextmanager
async def serving(small: SmallModel, styles: dict[str, Path], mode: Mode) -> AsyncIterator[LocalCluster]:
    """A service with two workers of each role, and adapters under their names."""
    async with local_cluster(small, mode, each=2, lora=LORA) as cluster:
        adapters = ServedAdapters(cluster.registry, shared(KeyValues()), "small")
        running = supervised(adapters.run(), "adapters")
        cluster.generation.adapters = adapters  # type: ignore[misc]
        try:
            for name, path in styles.items():
                await adapters.load(name, str(path))
            yield cluster
        finally:
            await cancelled(running)


@pytest.mark.parametrize("mode", Mode)
async def test_an_answer_of_an_adapter_is_verified_by_its_content(
    small: SmallModel, styles: dict[str, Path], mode: Mode
) -> None:
    async with serving(small, styles, mode) as cluster:
        base = await receipt_of(cluster, PATH, small, **SAMPLED)
        receipts = {name: await receipt_of(cluster, PATH, small, **SAMPLED, model=name) for name in styles}
        assert len({base["adapter"], *(each["adapter"] for each in receipts.values())}) == 4
        assert receipts["late"]["adapter"].partition("@")[2] == str(len(prompt_of(small)) - 12)
        assert base["adapter"] == receipts["late"]["namespace"] == "" != receipts["one"]["namespace"]
        for name, receipt in receipts.items():
            assert receipt["token_ids"] != base["token_ids"], name
            found, text = await verdict(cluster, receipt)
            assert found["outcome"] == "equal", (name, text)
            for other in ("", "ab" * 32, receipts["two" if name == "one" else "one"]["adapter"]):
                found, text = await verdict(cluster, sealed(receipt | {"adapter": other}))
                assert (found["outcome"], "adapter" in text) == ("differs", True), name
            found, text = await verdict(cluster, sealed(receipt | {"model": "small"}))
            assert found["outcome"] == "differs"
            assert "adapter" in found["fields"]
        found, text = await verdict(cluster, sealed(receipts["one"] | {"model": "two"}))
        assert found["outcome"] == "differs"
        found, text = await verdict(cluster, sealed(receipts["one"] | {"model": "gone"}))
        assert found["outcome"] == "not_comparable"
        assert "gone" in found["reason"]
    renamed = {"one": styles["two"], "two": styles["one"]}
    async with serving(small, renamed, mode) as cluster:
        found, text = await verdict(cluster, receipts["one"])
        assert found["outcome"] == "differs"
        assert found["fields"]["adapter"] == (receipts["one"]["adapter"], receipts["two"]["adapter"])


@pytest.mark.parametrize("name", ["one", "late"])
async def test_after_a_migration_and_a_lost_worker(
    small: SmallModel, styles: dict[str, Path], name: str
) -> None:
    async with serving(small, styles, Mode.DISAGG) as cluster:
        right = await receipt_of(cluster, PATH, small, **LONG, model=name)
        moved = Asked(cluster, small, model=name)
        await moved.begun()
        dispatcher: Any = cluster.generation._dispatcher
        assert await dispatcher.migrate_from(decoding(cluster), 10.0) == 1
        assert await moved.receipt() == right
        lost = Asked(cluster, small, model=name)
        await lost.begun()
        (worker,) = (each for each in cluster.workers if each.worker_id == decoding(cluster))
        await worker.host.stop()
        assert await lost.receipt() == right
        await worker.host.start()
        found, text = await verdict(cluster, right)
        assert found["outcome"] == "equal", text


async def test_requests_of_adapters_are_replayed_by_name(
    small: SmallModel, styles: dict[str, Path], tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    async with serving(small, styles, Mode.MIXED) as cluster:
        with RecordFile(log, 1 << 20) as records:
            cluster.generation.records = records
            for name in ("small", *styles):
                await receipt_of(cluster, PATH, small, **SAMPLED, model=name)
            chat = body_of("/v1/chat/completions", small, model="small:two", temperature=0.7)
            assert (await post(cluster, "/v1/chat/completions", chat)).status_code == 200, WORDS
            cluster.generation.records = None
    async with serving(small, styles, Mode.DISAGG) as cluster:
        for served in (None, "small"):
            found = await replayed(log, cluster, served)
            assert [each.outcome for each in found] == ["equal"] * 5, found
    swapped = {"one": styles["two"], "two": styles["one"], "late": styles["late"]}
    async with serving(small, swapped, Mode.MIXED) as cluster:
        found = await replayed(log, cluster, None)
        assert sorted(each.outcome for each in found) == ["differs"] * 3 + ["equal"] * 2


async def replayed(log: Path, cluster: LocalCluster, served: str | None) -> list[Any]:
    return await asyncio.to_thread(
        lambda: list(replay(read_log([log]), OnService(ApiClient(cluster.url), served), 0.0, 1))
    )
