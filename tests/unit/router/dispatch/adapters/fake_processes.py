"""Worker processes that load adapters, and a router's sessions to them, for the machine of the adapters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import grpc

from router.dispatch.adapters.table import Use
from router.dispatch.workers.worker_adapters import WorkerAdapters
from rpc.baton.v1 import worker_pb2


class Machine(Protocol):
    """What processes and sessions read of the machine."""

    slow: bool
    """Whether calls wait for an answer."""
    loop: asyncio.AbstractEventLoop
    disk: dict[str, bytes]
    """Content of each folder."""
    workers: list[Process]
    registries: list[Sessions]
    asked: list[Asked]


class Refused(grpc.aio.AioRpcError):
    def __init__(self) -> None:
        super().__init__(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "it ended")


class Process:
    """A worker process, as stubs call it: refuses what the real one refuses. Calls wait for `answer`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.alive = True
        self.loaded: set[bytes] = set()
        self.running: dict[int, bytes] = {}
        """Digests of the adapters of its requests, by number."""
        self.calls: list[asyncio.Future[None]] = []
        self.coming: dict[bytes, str] = {}
        """Folders of adapters that it loads for requests that are here."""

    async def _turn(self) -> None:
        if self.machine.slow:
            call = asyncio.get_running_loop().create_future()
            self.calls.append(call)
            await call
        if not self.alive:
            raise Refused

    async def LoadAdapter(  # noqa: N802
        self,
        request: worker_pb2.LoadAdapterRequest,
        timeout: float,  # noqa: ASYNC109 - of a stub
    ) -> worker_pb2.AdapterInfo:
        await self._turn()
        content = self.machine.disk[request.path]
        if not content:
            return worker_pb2.AdapterInfo(error="half of it is missing")
        self.loaded.add(content)
        return worker_pb2.AdapterInfo(name=request.name, digest=content)

    async def UnloadAdapter(  # noqa: N802
        self,
        request: worker_pb2.UnloadAdapterRequest,
        timeout: float,  # noqa: ASYNC109
    ) -> worker_pb2.AdapterInfo:
        assert request.digest not in {asked.admitted_with for asked in self.machine.asked}
        await self._turn()
        if request.digest in self.running.values() or request.digest in self.coming:
            return worker_pb2.AdapterInfo(error="requests use it")
        if request.digest not in self.loaded:
            return worker_pb2.AdapterInfo(error="it is not loaded here")
        self.loaded.discard(request.digest)
        return worker_pb2.AdapterInfo(digest=request.digest)

    def report(self) -> list[worker_pb2.AdapterUse]:
        running = list(self.running.values())
        return [
            worker_pb2.AdapterUse(digest=digest, running=running.count(digest))
            for digest in sorted(self.loaded)
        ]


class Sessions:
    """The part of a registry that is used, with its sessions to the processes that there are."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.name = name
        self._sessions: dict[Process, Any] = {}

    def members(self) -> list[Any]:
        return [
            SimpleNamespace(
                handle=SimpleNamespace(worker_id=session.worker_id),
                session=session,
                wanted=asyncio.Event(),
                is_stopped=False,
            )
            for session in self.sessions()
        ]

    def sessions(self) -> list[Any]:
        return [self.session(place) for place in range(len(self.machine.workers))]

    def computing(self) -> list[Any]:
        return self.sessions()

    def computing_members(self) -> list[Any]:
        return self.members()

    def session(self, place: int) -> Any:
        process: Any = self.machine.workers[place]
        if process not in self._sessions:
            info = worker_pb2.WorkerInfo(max_loras=2, max_cpu_loras=8)
            self._sessions[process] = SimpleNamespace(
                worker_id=f"w{place}",
                key=f"w{place}@{id(process)}",
                info=info,
                adapters=WorkerAdapters(f"w{place}", process, info, self.machine.loop.time),
            )
        return self._sessions[process]

    def other_routers(self) -> list[str]:
        return [router.name for router in self.machine.registries if router is not self]

    async def reconsider(self) -> None:
        pass


@dataclass(eq=False)
class Asked:
    number: int
    use: Use
    admitted_with: bytes
    """Content that its name had."""
    process: Process | None = None
    placed_by: Any = None
    """The session over which it was sent."""
