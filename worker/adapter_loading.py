"""Reads the adapters of requests on other threads, so that no engine step waits for a disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeAlias

from engine.core.adapters import AdapterInfo, ReadAdapter
from engine.errors import AdapterRefused
from engine.loop.adapters import Adapters
from rpc.baton.v1 import worker_pb2
from worker.session.inbox import Inbox
from worker.session.metrics import WorkerMetrics

OnEnd: TypeAlias = Callable[[bytes, str], None]
"""(digest, refusal): an adapter is loaded, or for a reason cannot be."""

_THREADS: Final = 2
"""More than one, so that a large adapter does not block the others."""


class AdapterLoading:
    """All methods except `read` and `stop` are for the engine thread only."""

    def __init__(self, adapters: Adapters, inbox: Inbox, metrics: WorkerMetrics) -> None:
        self._adapters: Final = adapters
        self._inbox: Final = inbox
        self._metrics: Final = metrics
        self._threads: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="adapter")

    def begin(self, name: str, path: Path) -> None:
        """Let all ranks read an adapter; `read` and `add` follow."""
        self._adapters.begin(name, path)

    def read(self, name: str, path: Path) -> ReadAdapter:
        """From any thread. Raises AdapterRefused."""
        return self._adapters.read(name, path)

    def add(self, adapter: ReadAdapter) -> AdapterInfo:
        """Raises AdapterRefused."""
        info = self._adapters.add(adapter)
        self._metrics.adapter_load_seconds.observe(info.load_s)
        return info

    def unload(self, digest: bytes) -> AdapterInfo:
        """Raises AdapterRefused."""
        return self._adapters.unload(digest)

    def want(self, work: worker_pb2.Work, on_end: OnEnd) -> None:
        """Load the adapter of a request, unless it is here, or comes already, or no one has said from where.

        The engine takes the request meanwhile; it starts when the adapter is here.
        """
        digest = work.adapter_digest
        if digest and work.adapter_path and self._adapters.expect(digest):
            self.begin(work.adapter, Path(work.adapter_path))
            reading = self._threads.submit(self.read, work.adapter, Path(work.adapter_path))
            reading.add_done_callback(lambda read: self._inbox.post(self._take, work, on_end, read))

    def stop(self) -> None:
        """Wait for adapters that are being read; queued ones are dropped."""
        self._threads.shutdown(cancel_futures=True)

    def _take(self, work: worker_pb2.Work, on_end: OnEnd, reading: Future[ReadAdapter]) -> None:
        digest, refusal = work.adapter_digest, ""
        try:
            adapter = reading.result()
            if adapter.info.digest == digest:
                self.add(adapter)
            else:
                refusal = f"{work.adapter_path} has another content than when it was loaded"
        except AdapterRefused as error:
            refusal = str(error)
        if not refusal or self._adapters.give_up(digest):
            on_end(digest, refusal)
