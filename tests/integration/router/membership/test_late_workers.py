"""Workers that are late, told from workers that are lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

from router.config.choices import Routing
from router.dispatch.workers.member import WorkerState
from tests.integration.fake_cluster import PROMPT, Service, sampling, service
from tests.integration.fake_worker import answer, decode_worker
from tests.integration.reading import deltas_of
from tests.integration.router.membership.test_worker_probe import becomes, state

HURRIED = {"worker_timeout": 0.5, "routing": Routing.ROUND_ROBIN}


def retries(served: Service) -> str:
    return "\n".join(line for line in served.exported().splitlines() if "request_retries_total{" in line)


async def test_a_late_worker_keeps_its_streams_and_gets_no_new_requests() -> None:
    late, other = decode_worker("decode-0", token_s=0.005), decode_worker("decode-1")
    async with service(late, other, worker_grace=20.0, **HURRIED) as served:
        async with aclosing(deltas_of(served.dispatcher, PROMPT, sampling(300))) as deltas:
            seen = list((await anext(deltas)).token_ids)
            late.behaviour.stalled = True
            await becomes(served, "decode-0", WorkerState.LATE)
            for _ in range(3):
                assert await served.tokens() == answer(PROMPT, 8)
            assert len(other.commands("submit")) == 3
            late.behaviour.stalled = False
            async for delta in deltas:
                seen += delta.token_ids
        assert seen == answer(PROMPT, 300)
        assert state(served, "decode-0") is WorkerState.READY
        assert len(late.commands("submit")) == 1
        assert not retries(served)


async def test_a_request_for_a_cluster_that_is_late_waits_and_is_not_refused() -> None:
    worker = decode_worker("decode-0")
    async with service(worker, worker_grace=20.0, **HURRIED) as served:
        worker.behaviour.stalled = True
        await becomes(served, "decode-0", WorkerState.LATE)
        task = asyncio.create_task(served.tokens())
        await asyncio.sleep(0.1)
        worker.behaviour.stalled = False
        assert await task == answer(PROMPT, 8)
        assert not retries(served)


async def test_a_worker_that_stays_silent_is_lost_after_the_grace_period() -> None:
    stopped, other = decode_worker("decode-0", token_s=0.005), decode_worker("decode-1")
    async with service(stopped, other, worker_grace=0.5, **HURRIED) as served:
        async with aclosing(deltas_of(served.dispatcher, PROMPT, sampling(300))) as deltas:
            seen = list((await anext(deltas)).token_ids)
            stopped.behaviour.dumb = True
            began = time.monotonic()
            await becomes(served, "decode-0", WorkerState.UNAVAILABLE)
            assert time.monotonic() - began > 0.9
            async for delta in deltas:
                seen += delta.token_ids
        assert seen == answer(PROMPT, 300)
        assert 'failed_worker="decode-0"' in retries(served)


async def test_a_worker_that_answers_a_probe_is_given_the_time_anew() -> None:
    mute = decode_worker("decode-0", token_s=0.005)
    async with service(mute, worker_timeout=3.0, worker_grace=0.2) as served:
        async with aclosing(deltas_of(served.dispatcher, PROMPT, sampling(300))) as deltas:
            seen = list((await anext(deltas)).token_ids)
            mute.behaviour.mute = True
            await asyncio.sleep(4.0)  # more than timeout and grace, less than that and the timeout again
            mute.behaviour.mute = False
            async for delta in deltas:
                seen += delta.token_ids
        assert seen == answer(PROMPT, 300)
        assert not retries(served)


async def test_a_stream_that_stays_silent_is_lost_even_if_the_process_answers_probes() -> None:
    mute, other = decode_worker("decode-0", token_s=0.005), decode_worker("decode-1")
    async with service(mute, other, worker_grace=0.3, **HURRIED) as served:
        async with aclosing(deltas_of(served.dispatcher, PROMPT, sampling(300))) as deltas:
            seen = list((await anext(deltas)).token_ids)
            mute.behaviour.mute = True
            async for delta in deltas:
                seen += delta.token_ids
            mute.behaviour.mute = False
        assert seen == answer(PROMPT, 300)


async def test_a_late_worker_that_was_replaced_is_lost_at_once() -> None:
    replaced, other = decode_worker("decode-0", token_s=0.005), decode_worker("decode-1")
    async with service(replaced, other, worker_grace=600.0, **HURRIED) as served:
        async with aclosing(deltas_of(served.dispatcher, PROMPT, sampling(300))) as deltas:
            seen = list((await anext(deltas)).token_ids)
            replaced.epoch += 1000
            replaced.behaviour.mute = True
            async for delta in deltas:
                seen += delta.token_ids
            replaced.behaviour.mute = False
        assert seen == answer(PROMPT, 300)


async def test_a_late_worker_whose_port_is_closed_is_lost_at_once() -> None:
    ended, other = decode_worker("decode-0", token_s=0.005), decode_worker("decode-1")
    async with service(ended, other, worker_grace=600.0, **HURRIED) as served, asyncio.timeout(60.0):
        async with aclosing(deltas_of(served.dispatcher, PROMPT, sampling(300))) as deltas:
            seen = list((await anext(deltas)).token_ids)
            ended.behaviour.closed = ended.behaviour.mute = True
            async for delta in deltas:
                seen += delta.token_ids
            ended.behaviour.mute = False
        assert seen == answer(PROMPT, 300)
        assert 'failed_worker="decode-0"' in retries(served)
