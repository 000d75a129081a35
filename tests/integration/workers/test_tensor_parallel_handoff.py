"""Handoffs between workers with different numbers of ranks: the tokens are those of transformers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration import tiny_cluster
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import Pair, pair, work
from tests.integration.workers.test_mixed_worker import prompt
from tests.local_rank_processes import LocalRankProcesses
from tests.unit.engine.modeling.models.references import reference

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks wait for each other thousands of times, which takes its time where they share a core."""
    monkeypatch.setattr(tiny_cluster, "PATIENCE_S", 120.0)


@asynccontextmanager
async def sharded(folder: Path, prefill: int, decode: int) -> AsyncIterator[Pair]:
    def ranks(count: int) -> dict[str, Any]:
        return {"tensor_parallel_size": count, "kv_by_ranks": True}

    async with pair(folder, "nixl", ranks(prefill), ranks(decode)) as workers:
        yield workers


@pytest.mark.parametrize(("prefill", "decode"), [(1, 2), (2, 1), (2, 2), (1, 4)])
async def test_any_number_of_ranks_hands_off_to_any_other(
    folder: Path, oracle: Oracle, prefill: int, decode: int
) -> None:
    async with sharded(folder, prefill, decode) as workers:
        jobs = [work(prompt(length, seed=length), max_tokens=6) for length in (3, 33, 70)]
        outputs = await asyncio.gather(*(workers.generate(job) for job in jobs))
        assert outputs == [oracle(list(job.prompt), 6) for job in jobs]
        await workers.all_pages_back()


@pytest.mark.parametrize(("prefill", "decode"), [((2, 2), (1, 1)), ((2, 1), (2, 2))])
async def test_ranks_with_experts_of_their_own_hand_off_to_any_others(
    prefill: tuple[int, int], decode: tuple[int, int], tmp_path: Path
) -> None:
    """KV does not depend on where experts are."""
    model = reference("mixtral", num_heads=4)
    model.save_pretrained(tmp_path)
    oracle = Oracle(model.eval())

    def ranks(size: int, groups: int) -> dict[str, Any]:
        return {"tensor_parallel_size": size, "expert_parallel_size": groups, "kv_by_ranks": True}

    async with pair(tmp_path, "nixl", ranks(*prefill), ranks(*decode)) as workers:
        jobs = [work(prompt(length, seed=length), max_tokens=6) for length in (3, 33)]
        outputs = await asyncio.gather(*(workers.generate(job) for job in jobs))
        assert outputs == [oracle(list(job.prompt), 6) for job in jobs]
        await workers.all_pages_back()


_THOROUGH: Final = pytest.mark.thorough


@pytest.mark.parametrize(
    ("family", "prefill", "decode"),
    [
        pytest.param("qwen3.5", 2, 2, marks=_THOROUGH),
        ("qwen3.5", 1, 2),
        pytest.param("qwen3.5", 4, 1, marks=_THOROUGH),
        ("qwen3-next", 2, 1),
        ("nemotron-h", 1, 2),
        ("kimi linear", 2, 1),
        pytest.param("granite 4", 4, 1, marks=_THOROUGH),
        pytest.param("deepseek v3", 1, 2, marks=_THOROUGH),
        ("deepseek v3", 2, 1),
        ("glm5", 1, 2),
        ("gpt-oss", 1, 2),
        pytest.param("gpt-oss", 2, 1, marks=_THOROUGH),
        ("gemma4", 2, 2),
        pytest.param("gemma4 with shared layers", 2, 2, marks=_THOROUGH),
        pytest.param("gemma4 with experts", 4, 4, marks=_THOROUGH),
    ],
)
async def test_states_latent_kv_and_windows_are_handed_from_ranks_to_ranks(
    family: str, prefill: int, decode: int, tmp_path: Path
) -> None:
    """Pages of windows are cut by heads, ranks have copies of latent KV, and states are cut row by row."""
    model = reference(family, num_heads=4)
    model.save_pretrained(tmp_path)
    oracle = Oracle(model.eval())
    async with sharded(tmp_path, prefill, decode) as workers:
        jobs = [work(prompt(length, seed=length), max_tokens=6) for length in (3, 70)]
        outputs = await asyncio.gather(*(workers.generate(job) for job in jobs))
        assert outputs == [oracle(list(job.prompt), 6) for job in jobs]
        await workers.all_pages_back()


async def test_a_sender_that_loses_a_rank_fails_its_handoffs_and_frees_the_receivers_pages(
    folder: Path,
) -> None:
    async with sharded(folder, 2, 1) as workers:
        job = work(prompt(40), max_tokens=6)
        await workers.prefill.submit(job, handoff=True)
        await workers.prefill.next(job.request_id, "started")
        await workers.reserve(job)
        await workers.decode.next(job.request_id, "reserved")
        rank_processes = workers.prefill.host._rank_processes
        assert isinstance(rank_processes, LocalRankProcesses)
        (rank,) = rank_processes.processes
        assert rank.pid
        os.kill(rank.pid, signal.SIGKILL)
        while not workers.prefill.deaths:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await workers.prefill.host.stop()  # as its process would end
        await workers.decode.next(job.request_id, "failed")
        await workers.decode.all_pages_back()
