"""Workers that run transformers' own modules keep what all workers promise about KV and weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from engine.model_config import general
from engine.model_config.model_impl import ModelImpl
from engine.model_config.model_spec import ModelSpec
from engine.modeling.general import describe
from engine.modeling.loader.model_loader import load_model
from engine.modeling.loader.refill import Refill
from engine.modeling.models.base import CausalLM
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import worker
from tests.integration.workers.caching.test_tiers import POOL, TIERS, two_rounds
from tests.integration.workers.test_disagg_workers import prompt
from tests.integration.workers.test_live_migration import LENGTH, running
from tests.unit.engine.modeling.loader.test_refill import addresses, logits, pair
from worker.config import WorkerRole

GENERAL: Final[dict[str, Any]] = {"model_impl": ModelImpl.TRANSFORMERS}


@pytest.fixture(autouse=True)
def _described_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general, "_described", describe.answer)


async def test_a_migrated_answer_continues_at_its_next_token(folder: Path, oracle: Oracle) -> None:
    async with running(folder, source=GENERAL, target=GENERAL) as move:
        await move.migrate(await move.reserve())
        await move.target.next(move.there.request_id, "arrived")
        await move.rest(move.source, move.here.request_id)
        await move.rest(move.target, move.there.request_id)
        assert move.complete() == oracle(prompt(30), LENGTH)
        await move.all_pages_back()


async def test_evicted_prefixes_come_up_from_host_memory(folder: Path, oracle: Oracle) -> None:
    tiers = replace(TIERS, host_bytes=8 * TIERS.host_bytes)  # heads are stored with zeros up to 64 features
    async with worker(folder, WorkerRole.DECODE, None, tiers=tiers, **POOL, **GENERAL) as link:
        assert (await two_rounds(link, oracle))["host"] > 0


@pytest.mark.parametrize("name", ["llama with tied embeddings", "gpt-oss", "qwen3 with experts"])
def test_weights_are_replaced_in_the_same_memory(name: str, tmp_path: Path) -> None:
    old, new = pair(name, tmp_path)
    spec = partial(ModelSpec.from_folder, impl=ModelImpl.TRANSFORMERS)

    def load(folder: Path) -> CausalLM:
        return load_model(folder, spec=spec(folder))

    model, expected = load(old), logits(load(new))
    places = addresses(model)

    Refill(model, new, spec(new)).run()

    assert logits(model).equal(expected)
    assert addresses(model) == places
