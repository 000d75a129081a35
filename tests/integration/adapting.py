"""The adapters of a router over fake workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from common.background import cancelled, supervised
from router.cluster.record import ClusterRecord
from router.cluster.shared_record import SharedRecord, adapter_record
from router.dispatch.adapters.adapters import ServedAdapters
from router.dispatch.adapters.table import Catalogue, RouterView
from tests.integration.fake_cluster import Service
from tests.integration.fake_worker import FakeWorker
from tests.unit.router.cluster.key_values import KeyValues


def shared(store: KeyValues) -> SharedRecord[Catalogue, RouterView]:
    record = ClusterRecord(store, "m")

    async def ask(use: Callable[[ClusterRecord], object]) -> object:
        return use(record)

    return adapter_record(ask)


@asynccontextmanager
async def adapting(
    served: Service, store: KeyValues | None = None, base: str = "m"
) -> AsyncIterator[ServedAdapters]:
    adapters = ServedAdapters(served.registry, shared(store or KeyValues()), base)
    running = supervised(adapters.run(), "adapters")
    try:
        yield adapters
    finally:
        await cancelled(running)


def give(workers: list[FakeWorker], path: str, content: str) -> None:
    for worker in workers:
        worker.adapters[path] = content


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
