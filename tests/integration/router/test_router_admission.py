"""Requests that wait in the router: for room on a decode worker, and for their turn after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from router.config.choices import Routing
from router.errors import DeadlineExceeded, Internal, Overloaded, Unavailable
from tests.integration.fake_cluster import PROMPT, Service, pair, sampling, service
from tests.integration.fake_worker import FakeWorker, answer, decode_worker, prefill_worker
from tests.integration.reading import deltas_of

NEED = len(PROMPT) + 1
"""Pages of a request: the fakes' hold a token each."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def reports(served: Service, worker: FakeWorker, free_pages: int, **load: int) -> None:
    """Returns when the router knows."""
    worker.report(total_pages=100, free_pages=free_pages, **load)
    (session,) = [s for s in served.registry.sessions() if s.worker_id == worker.worker_id]
    await until(lambda: session.load.room().free_pages == free_pages)


def held_back(served: Service) -> int:
    return int(served.metric("baton_router_held_back_requests"))


async def test_a_prompt_waits_before_its_prefill_until_a_decode_worker_has_room() -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served:
        await reports(served, decode, NEED - 1)
        task = asyncio.create_task(served.tokens())
        await until(lambda: held_back(served) == 1)
        await asyncio.sleep(0.05)
        assert not prefill.received
        await reports(served, decode, NEED)
        assert await task == answer(PROMPT, 8)
        assert held_back(served) == 0
        await served.settled()


@pytest.mark.parametrize("load", [{"starved": 1}, {"queued_handoffs": 3, "queued_pages": 96}])
async def test_a_prompt_waits_in_the_router_while_others_wait_at_the_decode_worker(
    load: dict[str, int],
) -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served:
        await reports(served, decode, 99, **load)
        task = asyncio.create_task(served.tokens())
        await until(lambda: held_back(served) == 1)
        await reports(served, decode, 100)
        assert await task == answer(PROMPT, 8)


async def test_a_burst_is_let_in_as_far_as_it_fits_before_any_report_about_it() -> None:
    prefill, decode = pair(decode={"token_s": 0.01})
    async with service(prefill, decode) as served:
        await reports(served, decode, 3 * NEED)
        tasks = [asyncio.create_task(served.tokens(4)) for _ in range(8)]
        await until(lambda: len(decode.commands("reserve")) == 3)
        await asyncio.sleep(0.05)
        assert len(prefill.commands("submit")) == 3
        assert held_back(served) == 5
        while held_back(served):
            await asyncio.gather(*(t for t in tasks[: 8 - held_back(served)]))
            await reports(served, decode, 3 * NEED - 1)
            await reports(served, decode, 3 * NEED)
        assert await asyncio.gather(*tasks) == [answer(PROMPT, 4)] * 8
        await served.settled()


async def test_a_decode_worker_without_a_report_counts_as_having_room() -> None:
    async with service(*pair(decode={"token_s": 0.01})) as served:
        assert await asyncio.gather(*(served.tokens(3) for _ in range(50))) == [answer(PROMPT, 3)] * 50


async def test_a_short_prompt_passes_a_long_one_that_waits_for_room() -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served:
        await reports(served, decode, NEED)
        long = asyncio.create_task(served.tokens(prompt=[5] * 50))
        await until(lambda: held_back(served) == 1)
        assert await served.tokens() == answer(PROMPT, 8)
        assert held_back(served) == 1
        await reports(served, decode, 100)
        assert await long == answer([5] * 50, 8)


async def test_a_prompt_that_needs_quarantined_pages_is_refused_at_once_and_blocks_nobody() -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served:
        await reports(served, decode, NEED)
        long = asyncio.create_task(served.tokens(prompt=[5] * 50))
        await until(lambda: held_back(served) == 1)
        await reports(served, decode, 40, quarantined_pages=60)
        with pytest.raises(Unavailable, match="quarantine"):
            await long
        with pytest.raises(Unavailable, match="quarantine"):
            await served.tokens(prompt=[5] * 41)
        assert await served.tokens(prompt=[5] * 39) == answer([5] * 39, 8)
        assert not prefill.commands("abort")


async def test_the_decode_worker_with_room_is_chosen() -> None:
    fabric: dict[int, asyncio.Event] = {}
    full, roomy = decode_worker("decode-0", fabric), decode_worker("decode-1", fabric)
    async with service(prefill_worker("prefill-0", fabric), full, roomy) as served:
        await reports(served, full, NEED - 1)
        await reports(served, roomy, 100)
        for _ in range(4):
            assert await served.tokens() == answer(PROMPT, 8)
        assert not full.commands("reserve")


async def test_one_that_waits_longer_than_the_limit_is_refused_and_nothing_was_computed() -> None:
    prefill, decode = pair()
    async with service(prefill, decode, max_queue_wait=0.2) as served:
        await reports(served, decode, NEED - 1)
        with pytest.raises(Overloaded) as refused:
            await served.tokens()
        assert refused.value.retry_after_s >= 1.0
        assert not prefill.received
        assert served.metric("baton_no_first_token_seconds_count", outcome="overloaded") == 1


async def test_a_request_whose_timeout_passes_while_it_waits_gets_that_error() -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served:
        await reports(served, decode, NEED - 1)
        with pytest.raises(DeadlineExceeded):
            await served.tokens(timeout_s=0.2)
        assert not prefill.received


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served:
        await reports(served, decode, NEED - 1)
        task = asyncio.create_task(served.tokens())
        await until(lambda: held_back(served) == 1)
        task.cancel()
        await asyncio.wait([task])
        assert held_back(served) == 0
        assert await served.dispatcher.drain(1.0) == 0


async def test_when_the_last_decode_worker_is_lost_no_request_waits_for_its_room() -> None:
    prefill, decode = pair()
    async with service(prefill, decode) as served:
        await reports(served, decode, NEED - 1)
        task = asyncio.create_task(served.tokens())
        await until(lambda: held_back(served) == 1)
        await decode.restart()  # the new process has not reported: it is trusted to have room
        assert await task == answer(PROMPT, 8)


async def test_requests_of_a_lost_worker_are_recomputed_a_few_at_a_time_and_before_new_ones() -> None:
    first, second = decode_worker("decode-0", token_s=0.01), decode_worker("decode-1", silent=True)
    second.chunk = 8  # a window of 16 tokens: of three sequences of 4 tokens and 1 of the answer or more
    async with service(first) as served, service(second) as other:
        tasks = [asyncio.create_task(served.tokens(500)) for _ in range(20)]
        await until(lambda: served.metric("baton_ttft_seconds_count") == 20)
        served.registry._members += other.registry._members  # it comes when all are on the first
        await first.stop()
        await until(lambda: held_back(served) >= 17)
        new = asyncio.create_task(served.tokens())
        await until(lambda: held_back(served) == 21 - len(second.commands("submit")))
        assert 1 <= len(second.commands("submit")) <= 3
        assert all(command.submit.work.output for command in second.commands("submit"))
        for task in (*tasks, new):
            task.cancel()
        await asyncio.wait([*tasks, new])
        assert held_back(served) == 0


async def test_new_requests_are_not_paced_as_retries_are() -> None:
    worker = decode_worker("decode-0", silent=True)
    worker.chunk = 8
    async with service(worker) as served:
        tasks = [asyncio.create_task(served.tokens()) for _ in range(20)]
        await until(lambda: len(worker.commands("submit")) == 20)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_lost_workers_streams_all_continue() -> None:
    first, second = decode_worker("decode-0", token_s=0.01), decode_worker("decode-1", token_s=0.001)
    first.chunk = second.chunk = 8
    async with service(first, second, routing=Routing.ROUND_ROBIN) as served:
        tasks = [asyncio.create_task(served.tokens(60)) for _ in range(40)]
        await until(lambda: served.metric("baton_ttft_seconds_count") == 40)
        await first.stop()
        assert await asyncio.gather(*tasks) == [answer(PROMPT, 60)] * 40
        assert served.dispatcher.prefill_queue.tokens == 0


async def test_a_request_that_ends_workers_is_not_given_a_third_one() -> None:
    workers = [decode_worker(f"decode-{i}", break_after=0, times=100) for i in range(4)]
    async with service(*workers, max_attempts=10) as served:
        with pytest.raises(Internal, match=r"request [0-9a-f]{16}") as told:
            await served.tokens()
        assert "decode" not in told.value.message
        assert sum(len(worker.commands("submit")) for worker in workers) == 2
        assert await served.registry.wait_for_all(5.0)
        with pytest.raises(Internal) as again:  # as clients do on their own
            await served.tokens()
        assert again.value.message == told.value.message
        assert sum(len(worker.commands("submit")) for worker in workers) == 2
        for worker in workers:
            worker.behaviour.times = 0
        deltas = [d async for d in deltas_of(served.dispatcher, [1, 2], sampling(3))]
        assert [t for d in deltas for t in d.token_ids] == answer([1, 2], 3)


async def test_a_prefill_that_ends_workers_is_not_given_a_third_one() -> None:
    fabric: dict[int, asyncio.Event] = {}
    workers = [prefill_worker(f"prefill-{i}", fabric, break_after=0, times=100) for i in range(3)]
    async with service(*workers, decode_worker("decode-0", fabric), max_attempts=10) as served:
        with pytest.raises(Internal, match="ended"):
            await served.tokens()
        assert sum(len(worker.commands("submit")) for worker in workers) == 2


async def test_a_worker_that_failed_a_request_gets_it_back_only_if_it_is_the_only_one() -> None:
    """The other is suspect: better than one that is known to fail."""
    bad, suspect = decode_worker("decode-0", fail_after=0, times=100), decode_worker("decode-1")
    async with service(bad, suspect) as served:
        for session in served.registry.sessions():
            if session.worker_id == "decode-1":
                for _ in range(3):
                    session.breaker.request_failed()
        assert await served.tokens() == answer(PROMPT, 8)
        assert len(bad.commands("submit")) == 1
