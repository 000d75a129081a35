"""Reads the adapters of requests on other threads, so that no engine step waits for a disk or a network."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from engine.core.adapters import AdapterInfo, ReadAdapter
from engine.errors import AdapterRefused
from engine.loop.adapters import Adapters
from rpc.baton.v1.worker_pb2 import AdapterSource, LoadAdapterRequest, Work
from worker.adapters.copies import AdapterCopies
from worker.adapters.held_files import HeldFiles
from worker.session.inbox import Inbox
from worker.session.metrics import WorkerMetrics

log = logging.getLogger(__name__)

OnEnd: TypeAlias = Callable[[bytes, str], None]
"""(digest, refusal): an adapter is loaded, or for a reason cannot be."""

_THREADS: Final = 4
"""More than one, so that neither a large adapter nor a silent worker blocks the others."""
_KEY_BYTES: Final = 32


class AdapterLoading:
    """For the engine thread, except where a method says otherwise."""

    def __init__(self, adapters: Adapters, inbox: Inbox, metrics: WorkerMetrics) -> None:
        self.key: Final = secrets.token_bytes(_KEY_BYTES)
        """Key of the tickets with which other workers fetch adapters from this one."""
        self._adapters: Final = adapters
        self._inbox: Final = inbox
        self._metrics: Final = metrics
        self.files: Final = HeldFiles()
        """Files of loaded adapters, for other workers."""
        self._copies: Final = AdapterCopies()
        self._threads: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="adapter")

    def begin(self, wanted: LoadAdapterRequest) -> None:
        """Let all ranks read an adapter; `read` and `add` follow."""
        if wanted.path:
            self._adapters.begin(wanted.name, Path(wanted.path))

    def read(self, wanted: LoadAdapterRequest) -> ReadAdapter:
        """From any thread. Read an adapter in its folder, or else in a copy of another worker's.

        Raises AdapterRefused, with all that was tried.
        """
        began = time.monotonic()
        attempts = [partial(self._read_copy, source) for source in wanted.sources]
        if wanted.path:
            attempts.insert(0, partial(self._read_at, Path(wanted.path)))
        refusals: list[str] = []
        for attempt in attempts:
            try:
                read = attempt(wanted)
                return replace(read, info=replace(read.info, load_s=time.monotonic() - began))
            except AdapterRefused as error:
                refusals.append(str(error))
        raise AdapterRefused("; ".join(refusals) or f"no folder is known of the adapter {wanted.name}")

    def add(self, adapter: ReadAdapter) -> AdapterInfo:
        """Raises AdapterRefused."""
        try:
            info = self._adapters.add(adapter)
            self._hold(info.digest, adapter.path)
        finally:
            self._copies.drop(adapter.path)
        for digest in info.unloaded:
            self.files.drop(digest)
        self._metrics.adapter_load_seconds.observe(info.load_s)
        return info

    def unload(self, digest: bytes) -> AdapterInfo:
        """Raises AdapterRefused."""
        info = self._adapters.unload(digest)
        self.files.drop(digest)
        return info

    def want(self, wanted: LoadAdapterRequest, on_end: OnEnd) -> None:
        """Load the adapter of a request, unless it is here, or comes already, or no one has said from where.

        The engine takes the request meanwhile; it starts when the adapter is here.
        """
        digest = wanted.digest
        if digest and (wanted.path or wanted.sources) and self._adapters.expect(digest):
            self.begin(wanted)
            reading = self._threads.submit(self.read, wanted)
            reading.add_done_callback(lambda read: self._inbox.post(self._take, digest, on_end, read))

    def stop(self) -> None:
        """From any thread. Wait for adapters that are being read; queued ones are dropped."""
        self._copies.stop()
        self._threads.shutdown(cancel_futures=True)
        self._copies.remove()

    def _read_at(self, folder: Path, wanted: LoadAdapterRequest) -> ReadAdapter:
        """Raises AdapterRefused."""
        read = self._adapters.read(wanted.name, folder)
        if wanted.digest and read.info.digest != wanted.digest:
            raise AdapterRefused(f"{folder} has another content than when it was loaded")
        return read

    def _read_copy(self, source: AdapterSource, wanted: LoadAdapterRequest) -> ReadAdapter:
        """Raises AdapterRefused."""
        folder = self._copies.fetch(wanted.digest, source)
        self._inbox.post(self._adapters.begin, wanted.name, folder)
        try:
            return self._read_at(folder, wanted)
        except AdapterRefused:
            self._copies.drop(folder)
            raise

    def _take(self, digest: bytes, on_end: OnEnd, reading: Future[ReadAdapter]) -> None:
        refusal = ""
        try:
            self.add(reading.result())
        except AdapterRefused as error:
            refusal = str(error)
        if not refusal or self._adapters.give_up(digest):
            on_end(digest, refusal)

    def _hold(self, digest: bytes, folder: Path) -> None:
        try:
            self.files.hold(digest, folder)
        except OSError as error:
            log.warning("other workers cannot fetch the adapter in %s from this one: %s", folder, error)


def wanted_by(work: Work) -> LoadAdapterRequest:
    """The adapter of a request, if it has one."""
    return LoadAdapterRequest(
        name=work.adapter,
        path=work.adapter_path,
        digest=work.adapter_digest,
        sources=work.adapter_sources,
    )
