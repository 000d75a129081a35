"""One worker computes the beginning of a prompt, another the rest and the answer, against transformers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rpc.baton.v1 import worker_pb2
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import Pair, pair, slow_down, work
from tests.integration.workers.test_disagg_workers import prompt

PAGE = 4
LENGTH = 90


async def begin(workers: Pair, job: worker_pb2.Work, split: int) -> None:
    """Up to the point at which the first worker may write."""
    await workers.prefill.submit(job, hand_over=True, prefill_until=split)
    await workers.prefill.next(job.request_id, "started")
    await workers.reserve(job)
    await workers.attach(job)


async def generate(workers: Pair, job: worker_pb2.Work, split: int) -> tuple[list[int], Any, Any]:
    """The answer, the second worker's chunks, and what the first one says of the handoff."""
    await begin(workers, job, split)
    arrived = await workers.decode.next(job.request_id, "arrived")
    assert arrived.position == len(job.output), "the first new token comes from the second worker"
    first = await workers.decode.next(job.request_id, "tokens")
    rest, _ = ([], None) if first.finish else await workers.decode.tokens(job.request_id)
    handed_off = await workers.prefill.next(job.request_id, "handed_over")
    assert workers.prefill.events[job.request_id].empty(), "the first worker samples nothing"
    return [*first.ids, *rest], first.chunks, handed_off


@pytest.mark.parametrize("chunk_budget", [7, 16, 64])
@pytest.mark.parametrize("split", [PAGE, 44, LENGTH - 2, LENGTH - 1])
async def test_a_split_prompt_gets_the_tokens_of_transformers(
    folder: Path, oracle: Oracle, split: int, chunk_budget: int
) -> None:
    budget = {"chunk_budget": chunk_budget}
    async with pair(folder, prefill=budget, decode=budget) as w:
        answer, chunks, handed_off = await generate(w, work(prompt(LENGTH), max_tokens=12), split)
        assert answer == oracle(prompt(LENGTH), 12)
        assert sum(chunk.num_tokens for chunk in handed_off.chunks) == split
        assert sum(push.num_tokens for push in handed_off.pushes) == split
        if split < LENGTH - 1:  # a last token alone is no chunk, but a decode
            assert chunks[0].first_token == split
            assert sum(chunk.num_tokens for chunk in chunks) == LENGTH - split
        await w.all_pages_back()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("transport", ["loopback", "nixl"])
async def test_split_prompts_beside_decodes_and_other_prompts_do_not_mix(
    folder: Path, oracle: Oracle, transport: str, overlap: bool
) -> None:
    settings = {"overlap": overlap}
    async with pair(folder, transport, prefill=settings, decode=settings) as workers:
        prompts = [prompt(length, seed=length) for length in (9, 33, 47, 64, 80, 96)]
        running = work(prompt(20, seed=1), max_tokens=60)
        await workers.decode.submit(running)
        await workers.decode.next(running.request_id, "started")
        served = await asyncio.gather(
            *(generate(workers, work(p, max_tokens=9), len(p) // 2 // PAGE * PAGE) for p in prompts)
        )
        assert [answer for answer, _, _ in served] == [oracle(p, 9) for p in prompts]
        assert (await workers.decode.tokens(running.request_id))[0] == oracle(prompt(20, seed=1), 60)
        await workers.all_pages_back()


async def test_a_prefix_cached_beyond_the_split_at_the_first_worker_is_not_recomputed(
    folder: Path, oracle: Oracle
) -> None:
    async with pair(folder) as workers:
        known = work(prompt(80), max_tokens=1)
        await workers.prefill.submit(known)
        await workers.prefill.next(known.request_id, "started")
        await workers.prefill.tokens(known.request_id)
        answer, _, handed_off = await generate(workers, work(prompt(LENGTH), max_tokens=8), 40)
        assert answer == oracle(prompt(LENGTH), 8)
        assert sum(chunk.num_tokens for chunk in handed_off.chunks) == PAGE, "its last page"
        assert sum(push.num_tokens for push in handed_off.pushes) == 40
        await workers.all_pages_back()


async def test_a_prefix_cached_beyond_the_split_at_the_second_worker_is_not_sent(
    folder: Path, oracle: Oracle
) -> None:
    async with pair(folder) as workers:
        known = work(prompt(80), max_tokens=1)
        await workers.decode.submit(known)
        await workers.decode.next(known.request_id, "started")
        await workers.decode.tokens(known.request_id)
        answer, chunks, handed_off = await generate(workers, work(prompt(LENGTH), max_tokens=8), 40)
        assert answer == oracle(prompt(LENGTH), 8)
        assert handed_off.bytes == 0
        assert chunks[0].first_token == 80
        await workers.all_pages_back()


async def test_sampling_with_penalties_is_unchanged_by_a_split(folder: Path) -> None:
    settings = {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.4}
    async with pair(folder) as workers:
        split, _, _ = await generate(workers, work(prompt(50), max_tokens=20, **settings), 24)
        alone = work(prompt(50), max_tokens=20, **settings)
        await workers.decode.submit(alone)
        await workers.decode.next(alone.request_id, "started")
        assert split == (await workers.decode.tokens(alone.request_id))[0]


async def test_a_retry_may_be_split_within_the_answer_so_far(folder: Path, oracle: Oracle) -> None:
    async with pair(folder) as workers:
        expected = oracle(prompt(30), 20)
        job = work(prompt(30), max_tokens=20)
        job.output.extend(expected[:8])
        answer, _, _ = await generate(workers, job, 36)
        assert answer == expected[8:]
        await workers.all_pages_back()


async def test_a_split_that_leaves_nothing_to_the_second_worker_is_refused(folder: Path) -> None:
    async with pair(folder) as workers:
        job = work(prompt(40))
        await workers.prefill.submit(job, hand_over=True, prefill_until=40)
        failed = await workers.prefill.next(job.request_id, "failed")
        assert failed.code == worker_pb2.FAILURE_CODE_INVALID
        assert "prefill_until 40" in failed.message


async def test_the_rest_of_a_split_prompt_queues_and_leaves_pages_to_decodes(
    folder: Path, oracle: Oracle
) -> None:
    async with pair(folder, decode={"num_pages": 40}) as workers:
        prompts = [prompt(70, seed=seed) for seed in range(4)]  # 18 of 40 pages each, and more to decode
        served = await asyncio.gather(
            *(generate(workers, work(p, max_tokens=20), 32 + PAGE * i) for i, p in enumerate(prompts))
        )
        assert [answer for answer, _, _ in served] == [oracle(p, 20) for p in prompts]
        await workers.all_pages_back()


@pytest.mark.parametrize("who", ["prefill", "decode"])
@pytest.mark.parametrize("moment", ["started", "attached", "arrived"])
async def test_an_abort_at_any_moment_leaks_no_page(folder: Path, who: str, moment: str) -> None:
    async with pair(folder) as workers:
        for link in (workers.prefill, workers.decode):
            slow_down(link.host, seconds=0.005)
        job = work(prompt(96), max_tokens=20)
        await workers.prefill.submit(job, hand_over=True, prefill_until=48)
        await workers.prefill.next(job.request_id, "started")
        if moment != "started":
            await workers.reserve(job)
            await workers.attach(job)
        if moment == "arrived":
            await workers.decode.next(job.request_id, "arrived")
        first, second = (workers.prefill, workers.decode)[:: 1 if who == "prefill" else -1]
        await first.abort(job.request_id)
        await second.abort(job.request_id)
        await workers.all_pages_back()


async def test_a_first_worker_that_dies_fails_the_handoff_and_frees_its_pages(folder: Path) -> None:
    async with pair(folder, "nixl") as workers:
        slow_down(workers.prefill.host, seconds=0.1)
        job = work(prompt(96))
        await begin(workers, job, 64)
        await workers.prefill.host.stop()
        failed = await workers.decode.next(job.request_id, "failed")
        # By the sender's Drain, or by the end of its transport, whichever arrives first.
        assert failed.code in (worker_pb2.FAILURE_CODE_SENDER, worker_pb2.FAILURE_CODE_HANDOFF)
        await workers.decode.all_pages_back()


async def test_a_second_worker_that_dies_fails_the_handoff_and_frees_its_pages(folder: Path) -> None:
    async with pair(folder, "nixl") as workers:
        slow_down(workers.prefill.host, seconds=0.1)
        job = work(prompt(96))
        await begin(workers, job, 64)
        await workers.decode.host.stop()
        assert (await workers.prefill.next(job.request_id, "failed")).code == worker_pb2.FAILURE_CODE_HANDOFF
        await workers.prefill.all_pages_back()
