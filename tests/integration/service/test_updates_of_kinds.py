"""A rolling update gives the answers of a fresh start: kinds of KV, and a format of quantized weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.config.choices import Mode
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel, save_small_model
from tests.integration.models.kinds_of_kv import latents, states
from tests.integration.service.changed_weights import PROMPT, ask, changed_model, continued, ids_of
from tests.unit.engine.modeling.loader.quantizing import FP8_FORMATS, rewrite

FLEETS = [(Mode.MIXED, 2), (Mode.DISAGG, 1), (Mode.ADAPTIVE, 1)]
PROMPTS = [PROMPT, PROMPT[:50], [*PROMPT[:40], 99, *PROMPT[:20]]]
FORMAT = "fp8 per channel"


async def answers(cluster: LocalCluster) -> list[list[int]]:
    """Each twice: the second one begins with cached pages."""
    return [ids_of(await ask(cluster, 12, prompt)) for prompt in PROMPTS * 2]


@pytest.mark.parametrize(("mode", "each"), FLEETS, ids=str)
@pytest.mark.parametrize("kind", [latents, states], ids=lambda kind: kind.__name__)
async def test_a_family_answers_as_transformers_does_with_the_new_weights(
    kind: Callable[..., Any], mode: Mode, each: int, tmp_path: Path
) -> None:
    small = save_small_model(tmp_path / "small", kind)
    changed = changed_model(small, tmp_path / "changed")
    async with local_cluster(small, mode, each=each) as cluster:
        assert await answers(cluster) == [continued(small.model, prompt, 12) for prompt in PROMPTS * 2]
        done = await cluster.weights.update(str(changed.folder))
        assert not done.paused
        assert await answers(cluster) == [continued(changed.model, prompt, 12) for prompt in PROMPTS * 2]
        await cluster.all_pages_back()


@pytest.mark.parametrize(("mode", "each"), FLEETS, ids=str)
async def test_quantized_weights_answer_as_after_a_fresh_start_with_them(
    small: SmallModel, mode: Mode, each: int, tmp_path: Path
) -> None:
    changed = changed_model(small, tmp_path / "changed")
    for name, source in (("old", small.folder), ("new", changed.folder)):
        rewrite(source, tmp_path / name, tmp_path / "dense" / name, FP8_FORMATS[FORMAT])
    async with local_cluster(replace(small, folder=tmp_path / "new"), mode, each=each) as cluster:
        fresh = await answers(cluster)
    async with local_cluster(replace(small, folder=tmp_path / "old"), mode, each=each) as cluster:
        assert await answers(cluster) != fresh
        await cluster.weights.update(str(tmp_path / "new"))
        assert await answers(cluster) == fresh
        await cluster.all_pages_back()
