"""Real workers in this process (tiny model, real gRPC, no Ray), and the router's end of their streams."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import grpc

from engine.executor.base import StepInFlight
from engine.executor.runner import PreparedStep
from rpc.baton.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from rpc.channel import connect
from rpc.session import BEAT_S
from tests.local_rank_processes import LocalRankProcesses
from tests.unit.tiny import make_config
from worker.config import TierConfig, WorkerConfig, WorkerRole
from worker.process.engine_loop import EngineDied
from worker.process.host import WorkerHost

PATIENCE_S = 20.0

_KINDS = ("started", "reserved", "wanted", "arrived", "outputs", "handed_off", "failed")
_ids = count(1)


@dataclass
class Link:
    """A session to one worker. Events are queued by request, as (kind, message)."""

    stub: worker_pb2_grpc.WorkerStub
    call: Any
    host: WorkerHost
    deaths: list[EngineDied]
    events: dict[int, asyncio.Queue[tuple[str, Any]]] = field(
        default_factory=lambda: defaultdict(asyncio.Queue)
    )
    batches: list[worker_pb2.EventBatch] = field(default_factory=list)
    reader: asyncio.Task[None] | None = None
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, **command: Any) -> None:
        # Shielded: gRPC takes a cancelled write for the end of the whole stream.
        await asyncio.shield(self.write(worker_pb2.Command(**command)))

    async def write(self, command: worker_pb2.Command) -> None:
        async with self.writing:
            await self.call.write(command)

    async def death(self) -> EngineDied:
        """What the engine dies of. Clients hear of it first: raises TimeoutError if it lives on."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.deaths:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self.deaths[0]

    async def submit(self, work: worker_pb2.Work, handoff: bool = False) -> None:
        submit = worker_pb2.Submit(work=work, handoff=handoff)
        await self.send(submit=submit)

    async def abort(self, request_id: int) -> None:
        await self.send(abort=worker_pb2.Abort(request_id=request_id))

    async def next(self, request_id: int, kind: str) -> Any:
        """The request's next event, which must be of this kind."""
        async with asyncio.timeout(PATIENCE_S):
            found, message = await self.events[request_id].get()
        assert found == kind, f"{found} instead of {kind}: {message}"
        return message

    async def tokens(self, request_id: int) -> tuple[list[int], Any]:
        """All tokens up to the end of the request, and the last Tokens event."""
        ids: list[int] = []
        while True:
            event = await self.next(request_id, "tokens")
            ids += event.ids
            if event.finish:
                return ids, event

    async def pages(self) -> worker_pb2.PageCounts:
        return (await self.stub.GetStats(worker_pb2.GetStatsRequest())).pages

    async def all_pages_back(self) -> None:
        """Wait until free + cached = total, of slots for states too; fails after a while."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                stats = await self.stub.GetStats(worker_pb2.GetStatsRequest())
                accounts = (stats.pages, stats.state_slots)
                if all(counts.free + counts.cached == counts.total for counts in accounts):
                    return
                await asyncio.sleep(0.01)

    async def beat(self) -> None:
        """As routers do, or the worker ends the session."""
        while True:
            await asyncio.sleep(BEAT_S)
            await self.send(beat=worker_pb2.Beat())

    async def read(self) -> None:
        async for batch in self.call:
            self.batches.append(batch)
            for name in _KINDS:
                for message in getattr(batch, name):
                    kind, event = name, message
                    if isinstance(message, worker_pb2.Output):
                        kind = message.WhichOneof("kind")
                        event = getattr(message, kind)
                    self.events[message.request_id].put_nowait((kind, event))


def work(
    prompt: Sequence[int], max_tokens: int = 8, timeout_s: float = 0.0, **sampling: Any
) -> worker_pb2.Work:
    settings = {"top_p": 1.0, "repetition_penalty": 1.0, "ignore_eos": True, "seed": 7, **sampling}
    return worker_pb2.Work(
        request_id=next(_ids),
        prompt=prompt,
        sampling=sampling_pb2.SamplingParams(max_tokens=max_tokens, **settings),
        timeout_s=timeout_s,
    )


@asynccontextmanager
async def worker(
    folder: Path,
    role: WorkerRole,
    transport: str | None,
    name: str = "",
    kv_by_ranks: bool = False,
    tiers: TierConfig | None = None,
    **engine: Any,
) -> AsyncIterator[Link]:
    deaths: list[EngineDied] = []
    config = WorkerConfig(
        worker_id=name or f"{role.value}-0",
        role=role,
        model="tiny",
        engine=make_config(folder, **{"chunk_budget": 16, "num_pages": 128, **engine}),
        tiers=tiers,
        transport=transport,
        kv_by_ranks=kv_by_ranks,
        handoff_timeout_s=PATIENCE_S,
    )
    rank_processes = LocalRankProcesses() if config.engine.tensor_parallel_size > 1 else None
    host = WorkerHost(config, on_death=deaths.append, rank_processes=rank_processes)
    await host.start()
    try:
        async with session(host, deaths) as link:
            yield link
    finally:
        await host.stop()


@asynccontextmanager
async def session(host: WorkerHost, deaths: list[EngineDied]) -> AsyncIterator[Link]:
    async with connect(host.address) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        link = Link(stub, stub.Session(), host, deaths)
        link.reader = asyncio.create_task(link.read())
        beating = asyncio.create_task(link.beat())
        try:
            yield link
        finally:
            beating.cancel()
            link.call.cancel()
            await asyncio.gather(link.reader, beating, return_exceptions=True)


@dataclass
class Pair:
    """A prefill and a decode worker, and the router's steps between them."""

    prefill: Link
    decode: Link

    async def reserve(self, job: worker_pb2.Work, timeout_s: float | None = None) -> None:
        info = await self.prefill.stub.Describe(worker_pb2.DescribeRequest())
        await self.decode.send(
            reserve=worker_pb2.Reserve(work=job, sender=info.peer, timeout_s=timeout_s or PATIENCE_S)
        )

    async def attach(self, job: worker_pb2.Work) -> worker_pb2.Ticket:
        reserved = await self.decode.next(job.request_id, "reserved")
        await self.prefill.send(attach=worker_pb2.Attach(ticket=reserved.ticket))
        return reserved.ticket

    async def generate(self, job: worker_pb2.Work) -> list[int]:
        """Run a request through both workers."""
        await self.prefill.submit(job, handoff=True)
        await self.prefill.next(job.request_id, "started")
        await self.reserve(job)
        await self.attach(job)
        first = await self.prefill.next(job.request_id, "tokens")
        assert not first.finish
        await self.decode.next(job.request_id, "arrived")
        rest, _ = await self.decode.tokens(job.request_id)
        return [*first.ids, *rest]

    async def all_pages_back(self) -> None:
        await self.prefill.all_pages_back()
        await self.decode.all_pages_back()


@asynccontextmanager
async def pair(
    folder: Path,
    transport: str = "loopback",
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        yield Pair(
            await stack.enter_async_context(worker(folder, WorkerRole.PREFILL, transport, **(prefill or {}))),
            await stack.enter_async_context(worker(folder, WorkerRole.DECODE, transport, **(decode or {}))),
        )


async def status_of(call: Any) -> grpc.StatusCode:
    """How an RPC failed."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def slow_down(host: WorkerHost, seconds: float) -> None:
    """Make every step of this worker take at least `seconds`, as a larger model would."""
    before_each_step(host, lambda: time.sleep(seconds))


async def commands_arrived(host: WorkerHost, count: int) -> None:
    """Return when `count` commands wait for the engine's thread, which `before_each_step` must hold."""
    async with asyncio.timeout(PATIENCE_S):
        while host._parts.inbox._queue.qsize() < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def before_each_step(host: WorkerHost, act: Callable[[], object]) -> None:
    """`act` runs on the engine's thread, which waits for it."""
    runner = host._parts.engine.runner
    launch = runner.launch

    def acting_first(step: PreparedStep) -> StepInFlight:
        act()
        return launch(step)

    runner.launch = acting_first  # type: ignore[method-assign]
