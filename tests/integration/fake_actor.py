"""The fake worker as a Ray actor: a cluster whose workers start in no time."""

from __future__ import annotations

import os

import ray

from rpc.baton.v1.worker_pb2 import ROLE_DECODE
from tests.integration.fake_behaviour import Behaviour
from tests.integration.fake_worker import FakeWorker
from worker.config import WorkerConfig, WorkerRole
from worker.process.actor import Listening


class FakeActor:
    def __init__(self, config: WorkerConfig, bundle: int, log_level: int) -> None:
        self._worker = FakeWorker(config.worker_id, ROLE_DECODE, behaviour=Behaviour(token_s=0.05))
        self._worker.epoch = os.getpid()
        self._worker.router_certificate = config.router_certificate
        self._worker.settings_digest = config.settings_digest
        self._started = False

    async def start(self) -> Listening:
        if not self._started:
            await self._worker.start()
            self._started = True
        endpoint = await self._worker.endpoint()
        node = ray.get_runtime_context().get_node_id()
        return Listening(endpoint.address, self._worker.identity.certificate, node)

    async def routers(self) -> list[str]:
        return []

    async def stop(self) -> None:
        await self._worker.stop()


class BrokenActor(FakeActor):
    async def start(self) -> Listening:
        raise MemoryError("no room for the weights")


class StillbornActor(FakeActor):
    def __init__(self, config: WorkerConfig, bundle: int, log_level: int) -> None:
        raise ImportError("a library is missing on this node")


def fake_actor(role: WorkerRole) -> type:
    return FakeActor


def broken_actor(role: WorkerRole) -> type:
    return BrokenActor


def stillborn_actor(role: WorkerRole) -> type:
    return StillbornActor
