"""The dispatcher over fake workers, without frontends and without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from prometheus_client import generate_latest

from router.config.choices import Mode
from router.config.table import configured
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.token_stream import Delta
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import sampling_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE
from tests.integration.fake_worker import FakeWorker, decode_worker, prefill_worker
from tests.integration.reading import deltas_of

PROMPT = [5, 6, 7, 8]


@dataclass
class Service:
    dispatcher: ClusterDispatcher
    registry: Registry
    metrics: RouterMetrics
    workers: list[FakeWorker]

    async def deltas(
        self, max_tokens: int = 8, timeout_s: float = 0.0, prompt: Sequence[int] = PROMPT
    ) -> list[Delta]:
        return [
            delta
            async for delta in deltas_of(self.dispatcher, prompt, sampling(max_tokens), timeout_s=timeout_s)
        ]

    async def tokens(
        self, max_tokens: int = 8, timeout_s: float = 0.0, prompt: Sequence[int] = PROMPT
    ) -> list[int]:
        deltas = await self.deltas(max_tokens, timeout_s, prompt)
        return [token for delta in deltas for token in delta.token_ids]

    async def settled(self) -> None:
        """Every worker has been told of everything that it should forget."""
        async with asyncio.timeout(30):
            while any(worker.live for worker in self.workers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for session in self.registry.sessions():
            assert (session.load.requests, session.load.tokens) == (0, 0)

    def exported(self) -> str:
        return generate_latest(self.metrics.registry).decode()

    def metric(self, name: str, **labels: str) -> float:
        """0 before anything was observed."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def sampling(max_tokens: int) -> sampling_pb2.SamplingParams:
    return sampling_pb2.SamplingParams(max_tokens=max_tokens, seed=1)


@asynccontextmanager
async def service(
    *workers: FakeWorker, wait: bool = True, name: str = "", starts: bool = True, **settings: object
) -> AsyncIterator[Service]:
    """`starts`: the workers, which another router may have started."""
    mode = Mode.DISAGG if any(w.role != ROLE_DECODE for w in workers) else Mode.MIXED
    defaults = {"model": "m", "mode": mode, "failover_timeout": 5.0}
    config = configured({**defaults, **settings})
    metrics = RouterMetrics()
    async with AsyncExitStack() as stack:
        for worker in workers if starts else ():
            await worker.start()
            stack.push_async_callback(worker.stop)
        registry = await stack.enter_async_context(
            Registry(
                workers,
                silence_s=config.failover.worker_timeout,
                grace_s=config.failover.worker_grace,
                name=name,
            )
        )
        if wait:
            assert await registry.wait_for_all(5.0), registry.complaints()
        yield Service(ClusterDispatcher(config, registry, metrics), registry, metrics, list(workers))


def pair(prefill: dict | None = None, decode: dict | None = None) -> tuple[FakeWorker, FakeWorker]:
    fabric: dict[int, asyncio.Event] = {}
    return (
        prefill_worker("prefill-0", fabric, **(prefill or {})),
        decode_worker("decode-0", fabric, **(decode or {})),
    )
