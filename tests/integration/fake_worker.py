"""A worker that speaks the protocol over real gRPC and invents its tokens: for tests of the router alone."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from common.version import build
from router.dispatch.workers.member import WorkerUnavailable
from rpc.baton.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from rpc.channel import Endpoint
from rpc.peer_calls import ticket_for
from rpc.tls import Identity
from tests.integration.fake_behaviour import Behaviour

_epochs = itertools.count(1)
_KEY = b"key of tickets for adapters"


def token_at(prompt: list[int], position: int, adapter: bytes = b"") -> int:
    """The "model": the token at an absolute position is a function of the prompt and the adapter."""
    return (sum(prompt) + 7 * position + int.from_bytes(adapter[:2], "little")) % 1000


def answer(prompt: list[int], length: int, adapter: bytes = b"") -> list[int]:
    return [token_at(prompt, len(prompt) + i, adapter) for i in range(length)]


def _may_fetch(digest: bytes, sources: Iterable[worker_pb2.AdapterSource]) -> bool:
    """A real one sends nothing to those without its ticket."""
    return any(source.address and source.ticket == ticket_for(_KEY, digest) for source in sources)


def digest_of(content: str) -> bytes:
    """Digest of an adapter's content."""
    return hashlib.blake2b(content.encode(), digest_size=32).digest()


@dataclass
class FakeWorker(worker_pb2_grpc.WorkerServicer):
    worker_id: str
    role: worker_pb2.Role
    fabric: dict[int, asyncio.Event] = field(default_factory=dict)
    """Handoffs that were written, by id: shared by the two sides."""
    behaviour: Behaviour = field(default_factory=Behaviour)
    layout_hash: str = "L"
    weights: str = "W"
    chunk: int = 0
    node: str = ""
    transport: str = ""
    build: str = field(default_factory=build)
    router_certificate: bytes | None = None
    """Only the holder of its key is served; None: everybody."""
    settings_digest: str = ""
    adapters: dict[str, str] = field(default_factory=dict)
    """Content of each folder with an adapter, as this worker sees it."""
    adapters_address: str = ""
    """Where it says that others fetch its adapters."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why it does not load an adapter, by folder."""
    loaded: set[bytes] = field(default_factory=set)
    """Digests of the adapters that it holds."""
    invocation: tuple[int, ...] = ()
    """Tokens that activate its adapters."""
    received: list[worker_pb2.Command] = field(default_factory=list)
    live: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """Requests that hold something here."""

    def __post_init__(self) -> None:
        self.epoch = next(_epochs)
        self.identity = Identity.generate()
        self._sessions: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        self._address = ""
        self._attached: dict[int, asyncio.Event] = {}
        self._outboxes: list[asyncio.Queue[worker_pb2.EventBatch | None]] = []
        """Outboxes of open sessions."""

    async def start(self) -> FakeWorker:
        self._server = grpc.aio.server()
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server)
        if self.router_certificate is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            credentials = self.identity.serve(self.router_certificate)
            port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._address = f"127.0.0.1:{port}"
        await self._server.start()
        return self

    async def stop(self) -> None:
        """As a process that dies: streams break, requests are gone."""
        assert self._server is not None
        for task in self.live.values():
            task.cancel()
        self._address = ""
        await self._server.stop(None)
        self.live.clear()
        self.loaded.clear()

    async def restart(self) -> None:
        await self.stop()
        await self.revive()

    async def revive(self) -> None:
        self.epoch = next(_epochs)
        await self.start()

    async def endpoint(self) -> Endpoint:
        if not self._address:
            raise WorkerUnavailable("it is stopped")
        return Endpoint(self._address)

    def commands(self, kind: str) -> list[worker_pb2.Command]:
        return [command for command in self.received if command.WhichOneof("kind") == kind]

    def report(self, **load: Any) -> None:
        """Tells the router of its load, as of all commands so far. One session at a time."""
        batch = worker_pb2.EventBatch(load=worker_pb2.Load(**load), commands=len(self.received))
        for outbox in self._outboxes:
            outbox.put_nowait(batch)

    def say(self, **events: Any) -> None:
        """Tells the router of these events."""
        for outbox in self._outboxes:
            outbox.put_nowait(worker_pb2.EventBatch(**events))

    # ---------------------------------------------------------------------------------- protocol

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.WorkerInfo:
        while self.behaviour.dumb:  # noqa: ASYNC110 - as a stopped process, it answers when it goes on
            await asyncio.sleep(0.01)
        while self.behaviour.stalled:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if self.behaviour.closed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection refused")
        peer = worker_pb2.Peer(name=f"{self.worker_id}@{self.epoch}", epoch=self.epoch)
        return worker_pb2.WorkerInfo(
            worker_id=self.worker_id,
            role=self.role,
            epoch=self.epoch,
            layout_hash=self.layout_hash,
            weights=self.weights,
            peer=peer,
            chunked_prefill_size=self.chunk,
            metrics_address="127.0.0.1:1",
            node=self.node,
            transport=self.transport,
            build=self.build,
            settings_digest=self.settings_digest,
            adapters_address=self.adapters_address,
            adapters_key=_KEY,
        )

    async def LoadAdapter(  # noqa: N802
        self, request: worker_pb2.LoadAdapterRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.AdapterInfo:
        await self._may("load")
        if (error := self.refused.get(request.path)) is not None:
            return worker_pb2.AdapterInfo(error=error)
        if request.path not in self.adapters and _may_fetch(request.digest, request.sources):
            self.loaded.add(request.digest)
            return worker_pb2.AdapterInfo(name=request.name, digest=request.digest, rank=4)
        if request.path not in self.adapters:
            return worker_pb2.AdapterInfo(error=f"{request.path}: No such file or directory")
        digest = digest_of(self.adapters[request.path])
        self.loaded.add(digest)
        return worker_pb2.AdapterInfo(name=request.name, digest=digest, rank=4, invocation=self.invocation)

    async def UnloadAdapter(  # noqa: N802
        self, request: worker_pb2.UnloadAdapterRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.AdapterInfo:
        if request.digest in self.used:
            return worker_pb2.AdapterInfo(error="a request uses it")
        self.loaded.discard(request.digest)
        return worker_pb2.AdapterInfo(digest=request.digest)

    @property
    def used(self) -> set[bytes]:
        """Digests of the adapters of its requests."""
        works = (
            getattr(command, kind).work
            for command in self.received
            if (kind := command.WhichOneof("kind")) in ("submit", "reserve")
        )
        return {work.adapter_digest for work in works if work.request_id in self.live}

    async def Session(  # noqa: N802
        self, commands: AsyncIterator[worker_pb2.Command], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[worker_pb2.EventBatch]:
        outbox: asyncio.Queue[worker_pb2.EventBatch | None] = asyncio.Queue()
        outbox.put_nowait(worker_pb2.EventBatch())
        self._outboxes.append(outbox)
        reader = asyncio.create_task(self._read(commands, outbox))
        try:
            while True:
                try:
                    batch = await asyncio.wait_for(outbox.get(), 0.2)
                except TimeoutError:
                    batch = worker_pb2.EventBatch()  # a heartbeat
                if batch is None:
                    break
                while self.behaviour.stalled or self.behaviour.mute:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                if not self.behaviour.dumb:
                    yield batch
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker broke down")
        finally:
            self._outboxes.remove(outbox)
            reader.cancel()
            for task in self.live.values():
                task.cancel()
            self.live.clear()

    async def _read(
        self,
        commands: AsyncIterator[worker_pb2.Command],
        outbox: asyncio.Queue[worker_pb2.EventBatch | None],
    ) -> None:
        async for command in commands:
            self.received.append(command)
            match command.WhichOneof("kind"):
                case "abort":
                    task = self.live.pop(command.abort.request_id, None)
                    if task is not None:
                        task.cancel()
                case "load" if _may_fetch(command.load.digest, command.load.sources):
                    self.loaded.add(command.load.digest)
                case "submit" | "reserve" if self._lacks_adapter(command, outbox):
                    pass
                case "submit":
                    run = self._prefill if command.submit.handoff else self._mixed
                    self._launch(command.submit.work, run(command.submit.work, outbox))
                case "reserve":
                    self._launch(command.reserve.work, self._decode(command.reserve.work, outbox))
                case "drain":
                    outbox.put_nowait(worker_pb2.EventBatch(load=worker_pb2.Load(draining=True)))
                case "attach":
                    self._attach_of(command.attach.ticket.handoff_id).set()

    def _lacks_adapter(self, command: worker_pb2.Command, outbox: asyncio.Queue) -> bool:
        """As the real one, it loads the adapter that it lacks, or refuses the request."""
        work = command.submit.work if command.HasField("submit") else command.reserve.work
        if not work.adapter_digest or work.adapter_digest in self.loaded:
            return False
        is_right = digest_of(self.adapters.get(work.adapter_path, "")) == work.adapter_digest
        may_fetch = _may_fetch(work.adapter_digest, work.adapter_sources)
        if (is_right or may_fetch) and work.adapter_path not in self.refused:
            self.loaded.add(work.adapter_digest)
            return False
        failed = worker_pb2.Failed(
            request_id=work.request_id,
            code=worker_pb2.FAILURE_CODE_ADAPTER,
            message=f"adapter {work.adapter} is not loaded",
        )
        outbox.put_nowait(worker_pb2.EventBatch(failed=[failed]))
        return True

    def _launch(self, work: worker_pb2.Work, run: object) -> None:
        assert asyncio.iscoroutine(run)
        self.live[work.request_id] = asyncio.create_task(run)

    def _attach_of(self, handoff_id: int) -> asyncio.Event:
        return self._attached.setdefault(handoff_id, asyncio.Event())

    # ------------------------------------------------------------------------------------- roles

    async def _mixed(self, work: worker_pb2.Work, outbox: asyncio.Queue) -> None:
        await self._may("start")
        outbox.put_nowait(started(work))
        await self._may("token")
        await self._generate(work, outbox, have=len(work.output))

    async def _prefill(self, work: worker_pb2.Work, outbox: asyncio.Queue) -> None:
        await self._may("start")
        outbox.put_nowait(started(work))
        await self._may("token")
        if self.behaviour.silent:
            await asyncio.Event().wait()
        if self.behaviour.strikes(0, self.behaviour.break_after):
            outbox.put_nowait(None)
            return
        prompt, have = list(work.prompt), len(work.output)
        ends = self.behaviour.stop_at_first or have + 1 >= work.sampling.max_tokens
        first = tokens(
            work,
            token_at(prompt, len(prompt) + have, work.adapter_digest),
            sampling_pb2.FINISH_REASON_STOP if ends else sampling_pb2.FINISH_REASON_UNSPECIFIED,
            have,
        )
        if not self.behaviour.late_first_token:
            outbox.put_nowait(first)
        if ends:
            self.live.pop(work.request_id, None)
            return
        if self.behaviour.strikes(1, self.behaviour.fail_after):
            self._fail(work, outbox)
            return
        await self._attach_of(work.request_id).wait()
        await self._may("transfer")
        self.fabric.setdefault(work.request_id, asyncio.Event()).set()
        if self.behaviour.late_first_token:
            await asyncio.sleep(0.1)
            outbox.put_nowait(first)
        span = worker_pb2.Span(begin_s=0.0, end_s=0.1, num_tokens=len(prompt), bytes=64)
        handed = worker_pb2.HandedOff(request_id=work.request_id, bytes=64, chunks=[span], pushes=[span])
        outbox.put_nowait(worker_pb2.EventBatch(handed_off=[handed]))
        self.live.pop(work.request_id, None)

    async def _decode(self, work: worker_pb2.Work, outbox: asyncio.Queue) -> None:
        if self.behaviour.refuse_reservation and self.behaviour.times > 0:
            self.behaviour.times -= 1
            self._fail(work, outbox)
            return
        await self._may("reserve")
        ticket = worker_pb2.Ticket(handoff_id=work.request_id, epoch=self.epoch, pages=[1, 2])
        reserved = worker_pb2.Reserved(request_id=work.request_id, ticket=ticket)
        outbox.put_nowait(worker_pb2.EventBatch(reserved=[reserved]))
        await self.fabric.setdefault(work.request_id, asyncio.Event()).wait()
        arrived = worker_pb2.Arrived(request_id=work.request_id, position=len(work.output) + 1)
        outbox.put_nowait(worker_pb2.EventBatch(arrived=[arrived]))
        await self._may("decode")
        await self._generate(work, outbox, have=len(work.output) + 1)

    async def _generate(self, work: worker_pb2.Work, outbox: asyncio.Queue, have: int) -> None:
        prompt, made = list(work.prompt), 0
        while True:
            if self.behaviour.strikes(made, self.behaviour.break_after):
                outbox.put_nowait(None)
                return
            if self.behaviour.strikes(made, self.behaviour.fail_after):
                self._fail(work, outbox)
                return
            if self.behaviour.silent:
                await asyncio.Event().wait()
            await asyncio.sleep(self.behaviour.token_s)
            last = have + 1 >= work.sampling.max_tokens
            finish = sampling_pb2.FINISH_REASON_LENGTH if last else sampling_pb2.FINISH_REASON_UNSPECIFIED
            outbox.put_nowait(
                tokens(work, token_at(prompt, len(prompt) + have, work.adapter_digest), finish, have)
            )
            have, made = have + 1, made + 1
            if last:
                self.live.pop(work.request_id, None)
                return

    async def _may(self, step: str) -> None:
        while step in self.behaviour.waits_before:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def _fail(self, work: worker_pb2.Work, outbox: asyncio.Queue) -> None:
        failed = worker_pb2.Failed(
            request_id=work.request_id, code=self.behaviour.fail_code, message="as the test wants it"
        )
        self.live.pop(work.request_id, None)
        outbox.put_nowait(worker_pb2.EventBatch(failed=[failed]))


def started(work: worker_pb2.Work) -> worker_pb2.EventBatch:
    return worker_pb2.EventBatch(started=[worker_pb2.Started(request_id=work.request_id)])


def tokens(
    work: worker_pb2.Work, token: int, finish: sampling_pb2.FinishReason, position: int
) -> worker_pb2.EventBatch:
    message = worker_pb2.Tokens(ids=[token], finish=finish, cached_tokens=3, position=position)
    if work.sampling.HasField("logprobs"):
        most_likely = range(token, token + work.sampling.logprobs)
        falling = [-1.0 - rank for rank in range(len(most_likely))]
        message.logprobs.add(logprob=-1.0, rank=1, top_ids=most_likely, top_logprobs=falling)
    output = worker_pb2.Output(request_id=work.request_id, tokens=message)
    return worker_pb2.EventBatch(outputs=[output])


def prefill_worker(name: str, fabric: dict[int, asyncio.Event], **behaviour: object) -> FakeWorker:
    return FakeWorker(name, ROLE_PREFILL, fabric, Behaviour(**behaviour))


def decode_worker(
    name: str, fabric: dict[int, asyncio.Event] | None = None, **behaviour: object
) -> FakeWorker:
    return FakeWorker(name, ROLE_DECODE, fabric if fabric is not None else {}, Behaviour(**behaviour))
