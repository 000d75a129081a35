"""What requests get of a dispatcher beside their tokens: limits, deadlines of readers, outcomes, metrics."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from router.dispatch.token_stream import Delta, TokenStream
from router.dispatch.workers.member import WorkerBroken
from router.errors import DeadlineExceeded, Overloaded, Unavailable
from rpc.baton.v1 import sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE
from tests.integration.fake_cluster import PROMPT, pair, sampling, service
from tests.integration.fake_worker import answer, decode_worker
from tests.integration.reading import deltas_of


async def test_prompts_beyond_the_limit_are_refused_with_a_time_to_come_back() -> None:
    worker = decode_worker("decode-0", silent=True)
    async with service(worker, max_queued_tokens=2 * len(PROMPT)) as served:
        waiting = [asyncio.create_task(served.tokens()) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded) as refused:
            await served.tokens()
        assert refused.value.retry_after_s >= 1.0
        assert "baton_router_queued_tokens" in served.exported()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await served.settled()
        worker.behaviour.silent = False
        assert await served.tokens() == answer(PROMPT, 8)


async def test_a_slow_client_finds_the_tokens_merged() -> None:
    async with service(decode_worker("decode-0")) as served:
        deltas = []
        async for delta in deltas_of(served.dispatcher, PROMPT, sampling(200)):
            deltas.append(delta)
            await asyncio.sleep(0.05)
        assert [t for d in deltas for t in d.token_ids] == answer(PROMPT, 200)
        assert len(deltas) < 100


async def test_workers_of_another_layout_are_not_let_in() -> None:
    odd = decode_worker("decode-1")
    odd.layout_hash = "other"
    async with service(decode_worker("decode-0"), odd, wait=False) as served:
        with pytest.raises(WorkerBroken, match="--page-size"):
            await served.registry.wait_for_all(5.0)
        assert await served.registry.wait_for(ROLE_DECODE, 5.0)


async def test_workers_with_other_weights_are_not_let_in() -> None:
    odd = decode_worker("decode-1")
    odd.weights = "other"
    async with service(decode_worker("decode-0"), odd, wait=False) as served:
        with pytest.raises(WorkerBroken, match="one revision of the checkpoint"):
            await served.registry.wait_for_all(5.0)
        assert await served.registry.wait_for(ROLE_DECODE, 5.0)


async def test_workers_with_other_code_than_the_router_s_are_not_let_in() -> None:
    old = decode_worker("decode-1")
    old.build = "0.0.9 (0123456789ab)"
    async with service(decode_worker("decode-0"), old, wait=False) as served:
        with pytest.raises(
            WorkerBroken, match=r"decode-1 could not start: it runs Baton 0\.0\.9 .* this router"
        ):
            await served.registry.wait_for_all(5.0)
        assert await served.tokens() == answer(PROMPT, 8)


async def test_draining_refuses_the_new_and_finishes_the_old() -> None:
    async with service(decode_worker("decode-0", token_s=0.02)) as served:
        running = asyncio.create_task(served.tokens(10))
        await asyncio.sleep(0.05)
        draining = asyncio.create_task(served.dispatcher.drain(5.0))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await served.tokens()
        assert await draining == 0
        assert await running == answer(PROMPT, 10)


async def test_a_burst_spreads_over_workers_before_any_of_them_reports() -> None:
    workers = [decode_worker(f"decode-{i}", token_s=0.01) for i in range(4)]
    async with service(*workers) as served:
        answers = await asyncio.gather(*(served.tokens(3) for _ in range(40)))
        assert answers == [answer(PROMPT, 3)] * 40
        assert [len(worker.commands("submit")) for worker in workers] == [10, 10, 10, 10]


async def test_a_sequence_that_its_reader_ends_at_a_stop_string_has_timings_and_outcome_stop() -> None:
    async with service(decode_worker("decode-0", token_s=0.005)) as served:
        deltas: list[Delta] = []

        def deliver(delta: Delta) -> bool:
            deltas.append(delta)
            return True

        timings = await served.dispatcher.generate(
            worker_pb2.Work(prompt=PROMPT, sampling=sampling(1000)), TokenStream(deliver)
        )
        assert [delta.finish for delta in deltas] == [sampling_pb2.FINISH_REASON_UNSPECIFIED]
        assert 0 < timings.ttft_s <= timings.e2e_s
        await served.settled()
        assert served.metric("baton_requests_total", outcome="stop") == 1
        assert served.metric("baton_requests_total", outcome="abort") == 0


@pytest.mark.parametrize("state", ["running", "waiting"])
async def test_an_error_of_the_reader_ends_the_sequence_and_nobody_else(state: str) -> None:
    """Also if it happens while no worker computes the sequence, which waits for a retry."""
    worker = decode_worker("decode-0", token_s=0.005)
    async with service(worker) as served:

        def deliver(delta: Delta) -> bool:
            raise ValueError("broken")

        stream = TokenStream(deliver)
        if state == "waiting":
            stream.pause()
        generating = asyncio.create_task(
            served.dispatcher.generate(worker_pb2.Work(prompt=PROMPT, sampling=sampling(1000)), stream)
        )
        if state == "waiting":
            while not stream.delta.token_ids:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await worker.stop()
            stream.resume()
        with pytest.raises(ValueError, match="broken"):
            await generating
        if state == "running":
            assert await served.tokens() == answer(PROMPT, 8)


async def test_first_tokens_and_token_counts_are_observed_when_they_happen() -> None:
    async with service(decode_worker("decode-0", token_s=0.005)) as served:
        async with aclosing(deltas_of(served.dispatcher, PROMPT, sampling(1000))) as deltas:
            seen = 0
            while seen < 3:
                seen += len((await anext(deltas)).token_ids)
            assert served.metric("baton_ttft_seconds_count") == 1
            assert served.metric("baton_prompt_tokens_total") == len(PROMPT)
            assert served.metric("baton_output_tokens_total") == seen
            assert served.metric("baton_stage_seconds_count", stage="prefill") == 1
            assert served.metric("baton_stage_seconds_count", stage="first_decode") == 1
            assert served.metric("baton_e2e_seconds_count") == 0
        assert served.metric("baton_e2e_seconds_count") == 1


async def test_a_request_that_dies_before_its_first_token_is_counted() -> None:
    async with service(decode_worker("decode-0", silent=True)) as served:
        with pytest.raises(DeadlineExceeded):
            await served.tokens(timeout_s=0.2)
        name = "baton_no_first_token_seconds"
        assert served.metric(f"{name}_count", outcome="deadline_exceeded") == 1
        assert 0.2 <= served.metric(f"{name}_sum", outcome="deadline_exceeded") < 5.0
        assert served.metric("baton_prompt_tokens_total") == len(PROMPT)
        assert served.metric("baton_ttft_seconds_count") == served.metric("baton_e2e_seconds_count") == 0


async def test_metrics_count_requests_tokens_and_times() -> None:
    async with service(*pair()) as served:
        await served.tokens(8)
        assert served.metric("baton_requests_total", outcome="length") == 1
        assert served.metric("baton_output_tokens_total") == 8
        assert served.metric("baton_itl_seconds_count") == 7
        assert 'stage="transfer"' in served.exported()
