"""Adapters of workers that see no folder: the threads and connections of `AdapterLoading`, call by call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from engine.core.adapters import ReadAdapter
from engine.errors import AdapterRefused
from rpc.baton.v1 import worker_pb2
from rpc.peer_calls import ticket_for
from tests.unit.engine.fake_adapters import FakeAdapters, digest_of
from tests.unit.whole_cluster.questions import ADAPTERS

_COPIES: Final = Path("copies")


class BlindAdapters(FakeAdapters):
    """A bank that sees copies of other workers' folders, and no others."""

    def read(self, name: str, path: Path) -> ReadAdapter:
        if path.parent != _COPIES:
            raise AdapterRefused(f"{path}: no such folder")
        return super().read(name, path)


class FakeCopies:
    """`AdapterCopies` without a network."""

    def __init__(self, fellows: Callable[[], Iterable[Any]]) -> None:
        self._fellows = fellows
        self.failing = 0
        """Fetches that fail next."""

    def fetch(self, digest: bytes, source: worker_pb2.AdapterSource) -> Path:
        if self.failing:
            self.failing -= 1
            raise AdapterRefused("the connection broke")
        for fellow in self._fellows():
            info = fellow.info
            if fellow.alive and info.adapters_address == source.address and digest in fellow.engine.adapters:
                assert source.ticket == ticket_for(info.adapters_key, digest)
                return _COPIES / next(content for content in ADAPTERS if digest_of(content) == digest)
        raise AdapterRefused(f"{source.address} does not have it")

    def drop(self, folder: Path) -> None:
        pass


class LaterThreads:
    """Threads that work when they are told to."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(function(*arguments))
            except AdapterRefused as error:
                future.set_exception(error)

        self._waiting.append(work)
        return future

    def work(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
