"""A mixed-mode worker over real gRPC, against transformers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rpc.baton.v1 import sampling_pb2, worker_pb2
from rpc.channel import connect
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import (
    Link,
    before_each_step,
    commands_arrived,
    session,
    status_of,
    work,
    worker,
)
from worker.config import WorkerRole


def mixed(folder: Path, **engine: Any) -> Any:
    return worker(folder, WorkerRole.DECODE, None, **engine)


def prompt(length: int, seed: int = 3) -> list[int]:
    return [(seed * 31 + i * i * 7) % 97 for i in range(length)]


async def run(link: Link, job: worker_pb2.Work) -> list[int]:
    await link.submit(job)
    await link.next(job.request_id, "started")
    return (await link.tokens(job.request_id))[0]


async def test_a_request_gets_the_tokens_of_transformers(folder: Path, oracle: Oracle) -> None:
    async with mixed(folder) as link:
        job = work(prompt(50), max_tokens=12)
        assert await run(link, job) == oracle(list(job.prompt), 12)


async def test_concurrent_requests_each_get_their_own_tokens(folder: Path, oracle: Oracle) -> None:
    async with mixed(folder) as link:
        jobs = [work(prompt(length, seed=length), max_tokens=10) for length in (1, 5, 16, 33, 70, 100)]
        outputs = await asyncio.gather(*(run(link, job) for job in jobs))
        assert outputs == [oracle(list(job.prompt), 10) for job in jobs]


async def test_one_event_batch_a_step_carries_the_tokens_of_all_requests(folder: Path) -> None:
    async with mixed(folder) as link:
        jobs = [work(prompt(4, seed=i), max_tokens=40) for i in range(4)]
        await asyncio.gather(*(run(link, job) for job in jobs))
        with_tokens = [batch for batch in link.batches if batch.outputs]
        assert len({batch.step for batch in with_tokens}) == len(with_tokens)
        assert max(len(batch.outputs) for batch in with_tokens) == 4


async def test_a_stop_token_is_the_last_id_and_is_named(folder: Path, oracle: Oracle) -> None:
    async with mixed(folder) as link:
        expected = oracle(prompt(20), 6)
        stop = expected[3]
        job = work(prompt(20), max_tokens=6, stop_token_ids=[stop])
        await link.submit(job)
        await link.next(job.request_id, "started")
        ids, last = await link.tokens(job.request_id)
        assert ids == expected[: expected.index(stop) + 1]
        assert last.finish == sampling_pb2.FINISH_REASON_STOP
        assert last.stop_token == stop


async def test_output_of_an_earlier_attempt_is_continued_not_repeated(folder: Path, oracle: Oracle) -> None:
    async with mixed(folder) as link:
        expected = oracle(prompt(20), 10)
        job = work(prompt(20), max_tokens=10)
        job.output.extend(expected[:4])
        assert await run(link, job) == expected[4:]


async def test_a_repeated_prompt_reports_how_much_was_cached(folder: Path) -> None:
    async with mixed(folder) as link:
        first = await run(link, work(prompt(40)))
        again = work(prompt(40))
        await link.submit(again)
        started = await link.next(again.request_id, "started")
        ids, _ = await link.tokens(again.request_id)
        assert started.cached_tokens == 36  # page size 4, and the last token is always computed
        assert ids == first


async def test_logprobs_come_one_a_token_when_asked_for(folder: Path) -> None:
    async with mixed(folder) as link:
        job = work(prompt(10), max_tokens=3, logprobs=2)
        await link.submit(job)
        await link.next(job.request_id, "started")
        for _ in range(3):
            event = await link.next(job.request_id, "tokens")
            (logprobs,) = event.logprobs
            assert logprobs.rank == 1
            assert len(logprobs.top_ids) == 2
            assert logprobs.top_ids[0] == event.ids[0]


async def test_a_request_that_can_never_run_fails_as_invalid_and_the_worker_continues(folder: Path) -> None:
    async with mixed(folder) as link:
        for bad in (prompt(500), [], [10_000]):
            job = work(bad)
            await link.submit(job)
            failed = await link.next(job.request_id, "failed")
            assert failed.code == worker_pb2.FAILURE_CODE_INVALID
        assert len(await run(link, work(prompt(5)))) == 8


async def test_a_full_queue_is_reported_as_overload(folder: Path) -> None:
    async with mixed(folder, max_waiting_requests=1, max_running_requests=1) as link:
        computes, may_compute = Event(), Event()

        def hold() -> None:
            computes.set()
            may_compute.wait(30.0)

        before_each_step(link.host, hold)
        running, *others = [work(prompt(50, seed=i), max_tokens=50) for i in range(6)]
        await link.submit(running)
        assert await asyncio.to_thread(computes.wait, 30.0)
        for job in others:
            await link.submit(job)
        await commands_arrived(link.host, len(others))
        may_compute.set()
        failed = await link.next(others[-1].request_id, "failed")
        assert failed.code == worker_pb2.FAILURE_CODE_OVERLOADED


async def test_commands_for_a_handoff_are_refused(folder: Path) -> None:
    async with mixed(folder) as link:
        job = work(prompt(5))
        await link.send(reserve=worker_pb2.Reserve(work=job))
        assert (await link.next(job.request_id, "failed")).code == worker_pb2.FAILURE_CODE_INVALID
        await link.send(attach=worker_pb2.Attach(ticket=worker_pb2.Ticket(handoff_id=99)))
        assert len(await run(link, work(prompt(5)))) == 8


async def test_an_abort_frees_the_pages_and_is_not_answered(folder: Path) -> None:
    async with mixed(folder) as link:
        job = work(prompt(60), max_tokens=60)
        await link.submit(job)
        await link.next(job.request_id, "started")
        await link.abort(job.request_id)
        await link.abort(job.request_id)  # twice is nothing unusual
        await link.all_pages_back()
        kinds = {kind for kind, _ in link.events[job.request_id]._queue}  # type: ignore[attr-defined]
        assert kinds <= {"tokens"}


async def test_a_deadline_ends_a_request_that_is_still_running(folder: Path) -> None:
    async with mixed(folder, chunk_budget=4) as link:
        job = work(prompt(100), max_tokens=28, timeout_s=0.01)
        await link.submit(job)
        while True:
            kind, event = await link.events[job.request_id].get()
            if kind == "failed":
                break
        assert event.code == worker_pb2.FAILURE_CODE_DEADLINE
        await link.all_pages_back()


async def test_a_session_that_breaks_takes_its_requests_with_it_and_no_others(folder: Path) -> None:
    async with mixed(folder) as link:
        mine = work(prompt(30, seed=1), max_tokens=90)
        await link.submit(mine)
        async with session(link.host, link.deaths) as other:
            for seed in range(4):
                await other.submit(work(prompt(60, seed=seed), max_tokens=60))
        await link.next(mine.request_id, "started")
        ids, _ = await link.tokens(mine.request_id)
        assert len(ids) == 90
        await link.all_pages_back()
        stats = await link.stub.GetStats(worker_pb2.GetStatsRequest())
        assert stats.load.running == stats.load.waiting == 0


async def test_the_worker_describes_itself(folder: Path) -> None:
    async with mixed(folder) as link:
        info = await link.stub.Describe(worker_pb2.DescribeRequest())
        assert info.worker_id == "decode-0"
        assert info.role == worker_pb2.ROLE_DECODE
        assert (info.page_size, info.num_pages, info.max_model_len) == (4, 128, 128)
        assert info.epoch
        assert not info.HasField("peer")


async def test_metrics_are_served_in_base_units_with_the_workers_labels(folder: Path) -> None:
    async with mixed(folder) as link:
        await run(link, work(prompt(40)))
        info = await link.stub.Describe(worker_pb2.DescribeRequest())
        async with httpx.AsyncClient() as http:
            text = (await http.get(f"http://{info.metrics_address}/metrics")).text
        for sample in (
            'baton_worker_requests_total{%s,outcome="finished",role="decode",worker="decode-0"} 1.0',
            'baton_kv_pages{%s,role="decode",state="held",worker="decode-0"} 0.0',
            'baton_kv_group_pages{kind="full",%s,role="decode",state="held",worker="decode-0"} 0.0',
            'baton_generated_tokens_total{%s,role="decode",worker="decode-0"} 8.0',
            'baton_worker_ready{%s,role="decode",worker="decode-0"} 1.0',
        ):
            assert sample % 'mode="mixed",model_name="tiny"' in text


async def test_a_dead_engine_breaks_the_sessions_and_reports_not_serving(folder: Path) -> None:
    async with mixed(folder) as link:

        def explode(*_: object) -> None:
            raise RuntimeError("device-side assert")

        link.host._parts.engine.runner.launch = explode  # type: ignore[assignment]
        await link.submit(work(prompt(5)))
        assert link.reader is not None
        assert await status_of(link.reader) is grpc.StatusCode.UNAVAILABLE
        assert "device-side assert" in str(await link.death())
        async with connect(link.host.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(service="baton.v1.Worker"))
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        stats = link.stub.GetStats(worker_pb2.GetStatsRequest())
        assert await status_of(stats) is grpc.StatusCode.UNAVAILABLE


async def test_a_page_leak_ends_the_worker_as_soon_as_it_is_idle(folder: Path) -> None:
    async with mixed(folder) as link:
        link.host._parts.engine.kv.pool.take(1, owner=12345)
        with suppress(grpc.aio.AioRpcError):  # an idle worker may find the leak before the request arrives
            await link.submit(work(prompt(5)))
        assert link.reader is not None
        assert await status_of(link.reader) is grpc.StatusCode.UNAVAILABLE
        assert "PageLeak" in str(await link.death())
