"""A prefill and a decode worker over real gRPC, against transformers."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import pair, slow_down, work


@pytest.fixture(params=["loopback", "nixl"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prompt(length: int, seed: int = 3) -> list[int]:
    return [(seed * 31 + i * i * 7) % 97 for i in range(length)]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 17, 90])
async def test_a_transferred_request_gets_the_tokens_of_transformers(
    folder: Path, transport: str, oracle: Oracle, length: int
) -> None:
    async with pair(folder, transport) as workers:
        job = work(prompt(length), max_tokens=12)
        assert await workers.generate(job) == oracle(prompt(length), 12)
        handed_off = await workers.prefill.next(job.request_id, "handed_off")
        assert handed_off.bytes > 0
        await workers.all_pages_back()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_of_either_role_computes_whole_requests(
    folder: Path, oracle: Oracle, role: str
) -> None:
    async with pair(folder) as workers:
        worker = getattr(workers, role)
        prompts = [prompt(length, seed=length) for length in (2, 47, 90)]
        jobs = [work(p, max_tokens=9) for p in prompts]
        for job in jobs:
            await worker.submit(job)
        for job in jobs:
            await worker.next(job.request_id, "started")
        assert [(await worker.tokens(job.request_id))[0] for job in jobs] == [oracle(p, 9) for p in prompts]
        await workers.all_pages_back()


async def test_concurrent_handoffs_do_not_mix(folder: Path, transport: str, oracle: Oracle) -> None:
    async with pair(folder, transport) as workers:
        prompts = [prompt(length, seed=length) for length in (2, 11, 32, 47, 64, 80)]
        outputs = await asyncio.gather(*(workers.generate(work(p, max_tokens=9)) for p in prompts))
        assert outputs == [oracle(p, 9) for p in prompts]
        await workers.all_pages_back()


async def test_a_prefix_cached_at_the_decode_worker_is_not_sent(folder: Path, oracle: Oracle) -> None:
    async with pair(folder) as workers:
        first = work(prompt(60))
        await workers.generate(first)
        everything = await workers.prefill.next(first.request_id, "handed_off")
        longer = work([*prompt(60), 5, 6, 7])
        assert await workers.generate(longer) == oracle(list(longer.prompt), 8)
        rest = await workers.prefill.next(longer.request_id, "handed_off")
        assert rest.bytes < everything.bytes / 5


async def test_pages_of_a_chunk_are_transferred_while_the_next_one_is_computed(folder: Path) -> None:
    async with pair(folder) as workers:
        slow_down(workers.prefill.host, seconds=0.05)
        job = work(prompt(96))
        await workers.generate(job)
        record = await workers.prefill.next(job.request_id, "handed_off")
        chunks, pushes = record.chunks, record.pushes
        assert [c.num_tokens for c in chunks] == [16] * 6
        assert sum(p.num_tokens for p in pushes) == 96
        for this, following in pairwise(chunks):
            (push,) = [p for p in pushes if p.first_token + p.num_tokens == following.first_token]
            assert this.end_s <= push.begin_s <= push.end_s < following.end_s


async def test_the_first_chunk_is_announced_before_it_is_computed(folder: Path) -> None:
    async with pair(folder) as workers:
        slow_down(workers.prefill.host, seconds=0.3)
        job = work(prompt(8))
        await workers.prefill.submit(job, handoff=True)
        await workers.prefill.next(job.request_id, "started")
        await workers.reserve(job)
        await workers.attach(job)
        assert workers.prefill.events[job.request_id].empty()
        await workers.prefill.next(job.request_id, "tokens")


async def test_sampling_is_unchanged_by_a_handoff(folder: Path) -> None:
    settings = {
        "temperature": 1.0,
        "top_p": 0.9,
        "seed": 1234,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
    }
    async with pair(folder) as workers:
        moved = await workers.generate(work(prompt(30), max_tokens=20, **settings))
        alone = work(prompt(30), max_tokens=20, **settings)
        await workers.decode.submit(alone)
        await workers.decode.next(alone.request_id, "started")
        assert moved == (await workers.decode.tokens(alone.request_id))[0]


async def test_a_retry_continues_the_output_of_the_first_attempt(folder: Path, oracle: Oracle) -> None:
    async with pair(folder) as workers:
        expected = oracle(prompt(30), 12)
        job = work(prompt(30), max_tokens=12)
        job.output.extend(expected[:5])
        assert await workers.generate(job) == expected[5:]


async def test_a_request_that_ends_with_its_first_token_is_not_transferred(
    folder: Path, oracle: Oracle
) -> None:
    async with pair(folder) as workers:
        (first,) = oracle(prompt(30), 1)
        for job, finish in (
            (work(prompt(30), max_tokens=1), sampling_pb2.FINISH_REASON_LENGTH),
            (work(prompt(30), stop_token_ids=[first]), sampling_pb2.FINISH_REASON_STOP),
            (work(prompt(127), max_tokens=5), sampling_pb2.FINISH_REASON_LENGTH),
        ):
            await workers.prefill.submit(job, handoff=True)
            await workers.prefill.next(job.request_id, "started")
            await workers.reserve(job)
            await workers.attach(job)
            event = await workers.prefill.next(job.request_id, "tokens")
            assert event.finish == finish
            await workers.decode.next(job.request_id, "failed")
            await workers.all_pages_back()
            assert workers.prefill.events[job.request_id].empty()


async def test_handoffs_wait_in_order_for_pages(folder: Path, oracle: Oracle) -> None:
    async with pair(folder, decode={"num_pages": 32}) as workers:
        prompts = [prompt(70, seed=seed) for seed in range(4)]  # 18 of 32 pages each, and more to decode
        outputs = await asyncio.gather(*(workers.generate(work(p, max_tokens=20)) for p in prompts))
        assert outputs == [oracle(p, 20) for p in prompts]
        await workers.all_pages_back()


async def test_a_handoff_that_gets_no_pages_in_time_fails(folder: Path) -> None:
    async with pair(folder, decode={"num_pages": 32}) as workers:
        holder = work(prompt(100))
        await workers.reserve(holder)
        await workers.decode.next(holder.request_id, "reserved")
        late = work(prompt(60, seed=9))
        await workers.reserve(late, timeout_s=0.1)
        failed = await workers.decode.next(late.request_id, "failed")
        assert failed.code == worker_pb2.FAILURE_CODE_OVERLOADED
        assert "no pages became free" in failed.message
        await workers.decode.abort(holder.request_id)
        await workers.all_pages_back()


async def test_a_request_that_differs_on_the_two_workers_fails_the_handoff(folder: Path) -> None:
    async with pair(folder) as workers:
        job, other = work(prompt(40)), work(prompt(40, seed=4))
        other.request_id = job.request_id
        await workers.prefill.submit(job, handoff=True)
        await workers.prefill.next(job.request_id, "started")
        await workers.reserve(other)
        await workers.attach(job)
        await workers.prefill.next(job.request_id, "tokens")
        for link in (workers.prefill, workers.decode):
            failed = await link.next(job.request_id, "failed")
            assert failed.code == worker_pb2.FAILURE_CODE_HANDOFF
            assert "another request" in failed.message
        await workers.all_pages_back()


async def test_a_ticket_for_an_ended_request_frees_the_reserved_pages(folder: Path) -> None:
    async with pair(folder) as workers:
        job = work(prompt(40))
        await workers.reserve(job)
        await workers.attach(job)
        failed = await workers.decode.next(job.request_id, "failed")
        assert failed.code == worker_pb2.FAILURE_CODE_SENDER
        await workers.all_pages_back()


async def test_a_prefill_worker_that_dies_fails_the_handoff_and_frees_its_pages(
    folder: Path, transport: str
) -> None:
    async with pair(folder, transport) as workers:
        slow_down(workers.prefill.host, seconds=0.1)
        job = work(prompt(96))
        await workers.prefill.submit(job, handoff=True)
        await workers.prefill.next(job.request_id, "started")
        await workers.reserve(job)
        await workers.attach(job)
        await workers.prefill.host.stop()
        failed = await workers.decode.next(job.request_id, "failed")
        # By the sender's Drain, or by the end of its transport, whichever arrives first.
        assert failed.code in (worker_pb2.FAILURE_CODE_SENDER, worker_pb2.FAILURE_CODE_HANDOFF)
        await workers.decode.all_pages_back()
