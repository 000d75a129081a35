"""KV tiers of workers with two ranks, each with its part of a page: the tokens are those of transformers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from rpc.baton.v1 import worker_pb2
from tests.integration import tiny_cluster
from tests.integration.conftest import Oracle
from tests.integration.models.kinds_of_kv import other_heads, states, windows
from tests.integration.tiny_cluster import worker
from tests.integration.workers.caching.test_groups_on_tiers import PROMPTS as LONG
from tests.integration.workers.caching.test_groups_on_tiers import SHAPE
from tests.integration.workers.caching.test_groups_on_tiers import TURN as LONG_TURN
from tests.integration.workers.caching.test_tiers import POOL, PROMPTS, copied, flip_bits, run, stats
from tests.unit.engine.modeling.models.references import reference
from worker.config import TierConfig, WorkerRole
from worker.kv_tiers import TierError

pytestmark = pytest.mark.timeout(600)
TURN = [5, 6, 7]
SOME = PROMPTS[:4]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks wait for each other thousands of times, which takes its time where they share a core."""
    monkeypatch.setattr(tiny_cluster, "PATIENCE_S", 120.0)


def on_ranks(folder: Path, tiers: TierConfig, **settings: Any) -> Any:
    return worker(
        folder, WorkerRole.DECODE, None, tiers=tiers, tensor_parallel_size=2, **{**POOL, **settings}
    )


def with_disk(folder: Path) -> TierConfig:
    return TierConfig(host_bytes=40 * 1024, disk_dir=folder, second_tier_bytes=2000 * 1024)


async def test_evicted_prefixes_come_up_on_all_ranks(folder: Path, oracle: Oracle) -> None:
    async with on_ranks(folder, TierConfig(host_bytes=400 * 1024)) as link:
        promoted = 0
        for suffix in ([], TURN):
            for prompt in SOME:
                tokens, sources = await run(link, prompt + suffix)
                assert tokens == oracle(prompt + suffix, 8)
                promoted += sources.get("host", 0)
        assert promoted > 0
        await link.all_pages_back()


async def test_a_file_serves_only_if_every_rank_has_its_part_as_it_was(
    folder: Path, oracle: Oracle, tmp_path: Path
) -> None:
    """After a restart: all parts there, then bits flipped in the parts of rank 1, then these lost."""
    tiers = with_disk(tmp_path)

    async def answered(prompts: list[list[int]]) -> tuple[list[dict[str, int]], worker_pb2.KVTiers]:
        sources = []
        async with on_ranks(folder, tiers) as link:
            for prompt in prompts:
                tokens, found = await run(link, prompt + TURN)
                assert tokens == oracle(prompt + TURN, 8)
                sources.append(found)
            await link.all_pages_back()
            return sources, (await link.stub.GetStats(worker_pb2.GetStatsRequest())).tiers

    async with on_ranks(folder, tiers) as link:
        for number, prompt in enumerate(SOME, 1):
            await run(link, prompt)
            await copied(link, "disk", number * 15)
    assert (await answered(SOME[:1]))[0] == [{"disk": 60}]
    flip_bits(tmp_path / "decode-0.rank-1")
    sources, found = await answered(SOME[1:2])
    assert sources == [{}]
    assert found.faults["digest"] + found.faults["load"] > 0
    shutil.rmtree(tmp_path / "decode-0.rank-1")
    sources, found = await answered(SOME[2:])
    assert sources == [{}, {}]
    assert sum(found.faults.values()) == 0  # rank 0 knew that they were of no use
    assert found.tiers[1].name == "disk"


async def test_a_rank_that_cannot_open_its_part_says_why(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _occupied(tmp_path / "decode-0.rank-1"), pytest.raises(TierError, match="--disk-kv-dir"):
        async with on_ranks(folder, with_disk(tmp_path)):
            pass


@contextmanager
def _occupied(path: Path) -> Iterator[None]:
    """A file where the rank wants a folder."""
    path.write_text("")
    yield


def latent() -> PreTrainedModel:
    return reference("deepseek v3", num_heads=4)


@pytest.mark.parametrize("kind", ["states", "latent", "windows", "other heads"])
async def test_states_latent_kv_and_windows_come_up_on_all_ranks(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = {"states": lambda: states(**SHAPE), "latent": latent, "windows": lambda: windows(**SHAPE)}
    made |= {"other heads": lambda: other_heads(**SHAPE)}
    model = made[kind]()
    model.save_pretrained(tmp_path)
    oracle = Oracle(model.eval())
    settings = {"num_pages": 60, "num_state_slots": 4} if kind == "states" else {"num_pages": 60}
    tiers = TierConfig(host_bytes=1 << 22, disk_dir=tmp_path / "kv", second_tier_bytes=1 << 24)
    async with on_ranks(tmp_path, tiers, **settings) as link:
        turns = [[*prompt, *oracle(prompt, 8), *LONG_TURN] for prompt in LONG]
        for prompt in LONG:
            assert (await run(link, prompt))[0] == oracle(prompt, 8)
        promoted = 0
        for turn in turns:
            tokens, sources = await run(link, turn)
            assert tokens == oracle(turn, 8)
            promoted += sources.get("host", 0)
        assert promoted > 0, await stats(link)
        await link.all_pages_back()
