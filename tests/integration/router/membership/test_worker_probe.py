"""Probes of workers that are silent, hang or fail requests, and their recovery."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.dispatch.probes.worker_probe import WorkerProbe
from router.dispatch.workers.member import WorkerState
from router.errors import Unavailable
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE
from tests.integration.fake_cluster import Service, pair, service
from tests.integration.fake_worker import FakeWorker, answer, decode_worker, prefill_worker

PROMPT = [5, 6, 7, 8]


def probe(served: Service, *, interval_s: float, timeout_s: float) -> WorkerProbe:
    dispatcher = served.dispatcher
    return WorkerProbe(
        served.registry, dispatcher.attempt, dispatcher.able, interval_s=interval_s, timeout_s=timeout_s
    )


@asynccontextmanager
async def watched(*workers: FakeWorker, **settings: object) -> AsyncIterator[Service]:
    """A service with short probe intervals and timeouts."""
    async with (
        service(*workers, **settings) as served,
        probe(served, interval_s=0.2, timeout_s=0.3),
    ):
        yield served


def state(served: Service, name: str) -> WorkerState:
    (member,) = [m for m in served.registry.members() if m.handle.worker_id == name]
    return member.state


def probes(worker: FakeWorker) -> list[worker_pb2.Work]:
    works = [command.submit.work for command in worker.commands("submit")]
    return [work for work in works if work.sampling.max_tokens == 2]


async def becomes(served: Service, name: str, wanted: WorkerState, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while state(served, name) is not wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_silent_worker_is_lost_within_a_second_or_so() -> None:
    worker = decode_worker("decode-0")
    async with service(worker) as served:
        worker.behaviour.dumb = True
        began = time.monotonic()
        await becomes(served, "decode-0", WorkerState.UNAVAILABLE)
        assert time.monotonic() - began > 0.7
        worker.behaviour.dumb = False
        await becomes(served, "decode-0", WorkerState.READY)
        assert await served.tokens() == answer(PROMPT, 8)


async def test_a_stalled_router_declares_no_worker_dead() -> None:
    async with service(decode_worker("decode-0")) as served:
        (session,) = served.registry.sessions()
        time.sleep(2.0)  # noqa: ASYNC251 - the whole point
        await asyncio.sleep(0.5)
        assert session.alive


async def test_a_hung_idle_worker_leaves_the_rotation_and_rejoins_when_it_recovers() -> None:
    hanging, fine = decode_worker("decode-0"), decode_worker("decode-1")
    async with watched(hanging, fine) as served:
        hanging.behaviour.silent = True
        await becomes(served, "decode-0", WorkerState.UNHEALTHY)
        assert state(served, "decode-1") is WorkerState.READY
        hanging.received.clear()
        for _ in range(4):
            assert await served.tokens() == answer(PROMPT, 8)
        assert all(c.submit.work.sampling.max_tokens == 2 for c in hanging.commands("submit"))  # probes
        hanging.behaviour.silent = False
        await becomes(served, "decode-0", WorkerState.READY)


async def test_when_the_probe_has_failed_everywhere_requests_are_refused_at_once() -> None:
    worker = decode_worker("decode-0", silent=True)
    async with watched(worker) as served:
        await becomes(served, "decode-0", WorkerState.UNHEALTHY)
        with pytest.raises(Unavailable, match="decode-0: unhealthy"):
            await served.tokens()
        worker.behaviour.silent = False
        assert await served.registry.wait_for(ROLE_DECODE, 5.0)
        assert await served.tokens() == answer(PROMPT, 8)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_the_probe_finds_which_half_of_a_handoff_hangs(role: str) -> None:
    fabric: dict[int, asyncio.Event] = {}
    workers = [
        *(prefill_worker(f"prefill-{i}", fabric) for i in range(2)),
        *(decode_worker(f"decode-{i}", fabric) for i in range(2)),
    ]
    (hanging,) = [w for w in workers if w.worker_id == f"{role}-1"]
    async with watched(*workers) as served:
        hanging.behaviour.silent = True
        await becomes(served, hanging.worker_id, WorkerState.UNHEALTHY)
        assert [w.worker_id for w in workers if state(served, w.worker_id) is not WorkerState.READY] == [
            hanging.worker_id
        ]
        for _ in range(4):
            assert await served.tokens() == answer(PROMPT, 8)


async def test_a_worker_that_fails_request_after_request_is_avoided_until_it_serves_a_probe() -> None:
    failing, fine = decode_worker("decode-0", fail_after=0, times=1_000_000), decode_worker("decode-1")
    async with service(failing, fine) as served:
        for _ in range(10):
            assert await served.tokens() == answer(PROMPT, 8)
        assert state(served, "decode-0") is WorkerState.SUSPECT
        assert len(failing.commands("submit")) == 3
        failing.behaviour.times = 0
        async with probe(served, interval_s=60.0, timeout_s=1.0):
            await becomes(served, "decode-0", WorkerState.READY)


async def test_an_overloaded_worker_does_not_open_its_circuit() -> None:
    code = worker_pb2.FAILURE_CODE_OVERLOADED
    full = decode_worker("decode-0", fail_after=0, times=1_000_000, fail_code=code)
    async with (
        service(full, decode_worker("decode-1")) as served,
        probe(served, interval_s=0.05, timeout_s=30.0),
        asyncio.timeout(30.0),
    ):
        for _ in range(10):
            assert await served.tokens() == answer(PROMPT, 8)
        while len(probes(full)) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert state(served, "decode-0") is WorkerState.READY


async def test_busy_workers_are_not_probed() -> None:
    workers = pair(decode={"token_s": 0.002})
    async with watched(*workers) as served:
        for _ in range(20):
            await served.tokens(20)
        assert not probes(workers[0])
