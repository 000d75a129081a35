"""Does the tiers' jobs in threads: one copies between pool and host memory, two read and write files."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from engine.device.current import enter_device
from engine.kv_tiers.block_files import BlockFiles
from engine.kv_tiers.host_pages import HostPages
from engine.kv_tiers.jobs import Demote, Done, Job, Load, Promote, Remove, Save

__all__ = ["BackgroundCopier", "Digester"]

log = logging.getLogger(__name__)


class Digester(Protocol):
    def digest(self, pages: Sequence[int], tail_tokens: int) -> list[int]:
        """64-bit digests of pool pages; of the last one, only of its first `tail_tokens` tokens."""


class BackgroundCopier:
    """`engine.kv_tiers.jobs.Copier`, to be started and stopped once.

    The device's thread does promotions before demotions: a request waits for them.
    """

    def __init__(
        self,
        host: HostPages,
        digester: Digester,
        page_size: int,
        files: BlockFiles | None = None,
        *,
        device: str = "cpu",
        wake: Callable[[], None] = lambda: None,
        on_fatal: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """`digester` is used by one thread only. `wake` is called after each job, `on_fatal` when the device
        fails, both from the threads."""
        self._host = host
        self._digester = digester
        self._page_size = page_size
        self._files = files
        self._device = device
        self._wake = wake
        self._on_fatal = on_fatal
        self._dones: deque[Done] = deque()
        self._promotions: deque[Promote] = deque()
        self._demotions: deque[Demote] = deque()
        self._copies_wanted = threading.Semaphore(0)
        self._stopping = False
        self._writes: SimpleQueue[Save | Remove | None] = SimpleQueue()
        self._reads: SimpleQueue[Load | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=loop, name=name, daemon=True)
            for loop, name in (
                (self._copy, "kv-copies"),
                (self._write, "kv-writes"),
                (self._read, "kv-reads"),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the jobs being done; those queued are dropped, except the files to be written."""
        self._stopping = True
        self._copies_wanted.release()
        self._writes.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join()
        if self._files is not None:
            self._files.close()

    def submit(self, job: Job) -> None:
        match job:
            case Promote():
                self._promotions.append(job)
                self._copies_wanted.release()
            case Demote():
                self._demotions.append(job)
                self._copies_wanted.release()
            case Save() | Remove():
                self._writes.put(job)
            case Load():
                self._reads.put(job)

    def poll(self) -> list[Done]:
        dones: list[Done] = []
        while self._dones:
            dones.append(self._dones.popleft())
        return dones

    # ------------------------------------------------------------------------------ threads

    def _copy(self) -> None:
        try:
            enter_device(self._device)
            while True:
                self._copies_wanted.acquire()
                if self._stopping:
                    return
                if self._promotions:
                    self._promote(self._promotions.popleft())
                else:
                    self._demote(self._demotions.popleft())
        except BaseException as error:
            log.exception("a copy of KV failed")
            self._on_fatal(error)

    def _promote(self, job: Promote) -> None:
        self._host.put(job.slots, job.pages)
        self._done(job.id, self._digester.digest(job.pages, self._page_size))

    def _demote(self, job: Demote) -> None:
        self._host.fetch(job.pages, job.slots)
        self._done(job.id, self._digester.digest(job.pages, self._page_size))

    def _write(self) -> None:
        while (job := self._writes.get()) is not None:
            assert self._files is not None
            if isinstance(job, Remove):
                self._files.remove(job.key, job.hash)
                continue
            digest: int | None = job.digest
            try:
                self._files.write(job.key, job.hash, job.digest, self._host.slot(job.slot))
            except OSError as error:
                log.warning("cannot write KV to disk: %s", error)
                digest = None
            self._done(job.id, [digest])

    def _read(self) -> None:
        while (job := self._reads.get()) is not None:
            assert self._files is not None
            digest = None
            if not self._stopping:
                digest = self._files.read(job.key, job.hash, self._host.slot(job.slot))
            self._done(job.id, [digest])

    def _done(self, id: int, digests: Sequence[int | None]) -> None:
        self._dones.append(Done(id, tuple(digests)))
        self._wake()
