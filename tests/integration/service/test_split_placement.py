"""Prompts split between two real workers, also when one of the two ends."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from router.dispatch.routing.adaptive import AdaptivePlacing
from router.placement import ClusterView
from tests.integration.conftest import Oracle
from tests.integration.service.test_adaptive_placement import Cluster, D, Forced, P, cluster, prompt
from tests.integration.service.test_moving_answers import LENGTH, slowly, until, writers

ACROSS = [(P, D), (D, P)]


def view_of(served: Cluster) -> ClusterView:
    placing = served.dispatcher._placing
    assert isinstance(placing, AdaptivePlacing)
    assert placing._ledger is not None
    return placing._ledger.view(time.monotonic())


async def nothing_left(served: Cluster) -> None:
    await served.all_pages_back()
    assert all(session.load.requests == 0 for session in served.registry.sessions())
    assert all(
        (w.decodes, w.incoming, w.prompts, w.load.requests) == (0, 0, (), 0) for w in view_of(served).workers
    )


@pytest.mark.parametrize("pair", ACROSS)
async def test_the_answer_and_its_timings_come_from_both_workers(
    folder: Path, oracle: Oracle, pair: tuple[str, str]
) -> None:
    async with cluster(folder, Forced(pair, split=0.5)) as served:
        answer, timings = await served.generate(prompt(3, 90))
        assert answer == oracle(prompt(3, 90), 12)
        assert (timings.prefill_worker, timings.decode_worker, timings.split) == (*pair, 44)
        parts = [(chunk.first_token, chunk.num_tokens) for chunk in timings.chunks]
        assert [first for first, _ in parts] == sorted(first for first, _ in parts)
        assert sum(tokens for first, tokens in parts if first < 44) == 44
        assert sum(tokens for first, tokens in parts if first >= 44) == 46
        assert all(0 <= chunk.begin_s <= chunk.end_s <= timings.ttft_s + 0.05 for chunk in timings.chunks)
        await nothing_left(served)


async def test_prompts_are_split_in_both_directions_at_once(folder: Path, oracle: Oracle) -> None:
    async with cluster(folder, Forced(*ACROSS, split=0.6), num_pages=64) as served:
        prompts = [prompt(seed, 10 + 7 * seed) for seed in range(12)]
        answers = await asyncio.gather(*(served.generate(p, 20) for p in prompts))
        assert [answer for answer, _ in answers] == [oracle(p, 20) for p in prompts]
        await nothing_left(served)


async def test_an_answer_to_a_split_prompt_moves_like_any_other(folder: Path, oracle: Oracle) -> None:
    async with cluster(folder, Forced((P, D), split=0.5)) as served:
        slowly(served)
        asked = asyncio.create_task(served.generate(prompt(3), LENGTH))
        await until(lambda: writers(served) == [D])
        assert await served.dispatcher.evacuate(D, 10.0) == 1
        answer, timings = await asked
        assert answer == oracle(prompt(3), LENGTH)
        assert timings.decode_worker == P
        await nothing_left(served)


@pytest.mark.parametrize("pair", ACROSS)
@pytest.mark.parametrize("ended", [0, 1])
@pytest.mark.parametrize("part", [0, 1])
async def test_a_split_prompt_is_recomputed_when_either_worker_ends(
    folder: Path, oracle: Oracle, pair: tuple[str, str], ended: int, part: int
) -> None:
    """Unless the second worker already has the KV of a first worker that ends."""
    async with cluster(folder, Forced(pair, split=0.5), chunk_budget=8) as served:
        slowly(served, 0.02)
        asked = asyncio.create_task(served.generate(prompt(5, 60), LENGTH))

        def waits_for(index: int) -> bool:
            return any(w.id.startswith(pair[index]) and len(w.prompts) == 1 for w in view_of(served).workers)

        await until(lambda: served.dispatcher.running and waits_for(1))
        await until(lambda: waits_for(0) is (part == 0))
        await served.links[pair[ended]].host.stop()
        answer, timings = await asked
        assert answer == oracle(prompt(5, 60), LENGTH)
        if (ended, part) == (0, 1):
            assert (timings.split, timings.decode_worker) == (28, pair[1])
        else:
            assert (timings.split, timings.decode_worker) == (0, pair[1 - ended])
        left = served.links[pair[1 - ended]]
        await left.all_pages_back()


@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.06, 0.1])
async def test_clients_that_disconnect_during_split_prompts_leak_no_page(
    folder: Path, after_s: float
) -> None:
    async with cluster(folder, Forced(*ACROSS, split=0.5), chunk_budget=8, num_pages=512) as served:
        slowly(served, 0.005)
        asked = [asyncio.create_task(served.generate(prompt(seed, 90), 40)) for seed in range(6)]
        await until(lambda: any(s.load.requests for s in served.registry.sessions()))
        await asyncio.sleep(after_s)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await nothing_left(served)
