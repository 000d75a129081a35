"""Heartbeats and health of a real worker whose engine is slow or hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from engine.executor.base import StepInFlight
from engine.executor.runner import ModelRunner, PreparedStep
from router.dispatch.workers.events import Loss, Message, SessionListener, WorkerLost
from router.dispatch.workers.liveness import CircuitBreaker, HeartbeatMonitor
from router.dispatch.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.channel import Endpoint
from tests.integration.tiny_cluster import before_each_step, work
from tests.unit.tiny import make_config
from worker.config import WorkerConfig, WorkerRole
from worker.process.engine_loop import EngineDied
from worker.process.host import WorkerHost
from worker.session.router_session import Lease


@asynccontextmanager
async def host(
    folder: Path, on_death: Callable[[EngineDied], None], step_timeout_s: float
) -> AsyncIterator[WorkerHost]:
    config = WorkerConfig(
        worker_id="decode-0",
        role=WorkerRole.DECODE,
        model="tiny",
        engine=make_config(folder),
        step_timeout_s=step_timeout_s,
    )
    host = WorkerHost(config, on_death=on_death)
    await host.start()
    try:
        yield host
    finally:
        await host.stop()


async def open_session(host: WorkerHost) -> WorkerSession:
    return await WorkerSession.open(
        "decode-0", Endpoint(host.address), CircuitBreaker(), monitor=HeartbeatMonitor(1.0, 1.0)
    )


def submit(session: WorkerSession) -> None:
    session.send(worker_pb2.Command(submit=worker_pb2.Submit(work=work([2, 3, 4]))))


async def test_a_worker_has_warmed_up_when_it_serves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = 0
    launch = ModelRunner.launch

    def counted(runner: ModelRunner, step: PreparedStep) -> StepInFlight:
        nonlocal launches
        launches += 1
        return launch(runner, step)

    monkeypatch.setattr(ModelRunner, "launch", counted)
    async with host(folder, on_death=lambda _: None, step_timeout_s=60.0) as worker:
        assert launches > 1
        assert worker._parts.engine.stats().steps == 0


async def test_a_worker_in_a_long_step_is_alive_and_lets_routers_in(folder: Path) -> None:
    released = Event()
    async with host(folder, on_death=lambda _: None, step_timeout_s=60.0) as worker:
        before_each_step(worker, lambda: released.wait(30.0))
        session = await open_session(worker)
        submit(session)
        await asyncio.sleep(2.5)
        assert session.alive
        began = time.monotonic()
        other = await open_session(worker)
        assert time.monotonic() - began < 10.0
        await asyncio.sleep(1.5)
        assert session.alive
        assert other.alive
        released.set()
        await session.close()
        await other.close()


async def test_an_engine_that_hangs_ends_its_worker(folder: Path) -> None:
    deaths: list[EngineDied] = []
    released = Event()
    async with host(folder, deaths.append, step_timeout_s=1.0) as worker:
        before_each_step(worker, lambda: released.wait(30.0))
        session = await open_session(worker)
        await asyncio.sleep(1.5)
        assert not deaths  # idle is not hanging
        submit(session)
        async with asyncio.timeout(30.0):
            while not deaths:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert "hangs" in str(deaths[0])
        released.set()
        await session.close()


async def test_a_router_that_sends_no_heartbeat_learns_that_it_is_the_cause_of_the_loss(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.process.service.Lease", partial(Lease, 1.0))
    monkeypatch.setattr("router.dispatch.workers.session.BEAT_S", 60.0)
    heard: asyncio.Queue[Message | WorkerLost] = asyncio.Queue()
    async with host(folder, on_death=lambda _: None, step_timeout_s=60.0) as worker:
        session = await open_session(worker)
        session.listen(
            0, SessionListener(lambda message, _at: heard.put_nowait(message), lambda _tokens, _at: None)
        )
        async with asyncio.timeout(10.0):
            loss = await heard.get()
        assert isinstance(loss, WorkerLost)
        assert loss.how is Loss.ROUTER_LATE
        assert "the router was silent for 1 s" in loss.reason
        await session.close()
