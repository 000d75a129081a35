"""Does the tiers' jobs in threads: one copies between pool and host memory, two read and write files."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, TypeAlias

import torch

from engine.device.current import enter_device
from engine.kv_tiers.block_files import BlockFiles
from engine.kv_tiers.host_pages import HostPages
from engine.kv_tiers.jobs import Demote, Done, Job, Load, Promote, Remove, Save

log = logging.getLogger(__name__)


Digest: TypeAlias = Callable[[Sequence[int], int, torch.cuda.Event | None], Callable[[], list[int]]]
"""Digest pool pages once an event has happened, of the last one only its first so many tokens. Returns at
once; the function returned waits for the digests."""

_COPIES: Final = 2
"""Jobs that a GPU has at a time, so that its copies continue while the host learns of their ends."""


class BackgroundCopier:
    """`engine.kv_tiers.jobs.Copier`, to be started and stopped once.

    The device's thread does promotions before demotions: a request waits for them.
    """

    def __init__(
        self,
        host: HostPages,
        digest: Digest,
        page_size: int,
        files: BlockFiles | None = None,
        *,
        device: str = "cpu",
        wake: Callable[[], None] = lambda: None,
        on_fatal: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """`digest` is called by one thread only. `wake` is called after each job, `on_fatal` when the device
        fails, both from the threads."""
        self._host = host
        self._digest = digest
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
        under_way: deque[tuple[int, Callable[[], list[int]]]] = deque()
        try:
            enter_device(self._device)
            while under_way or not self._stopping:
                if self._copies_wanted.acquire(blocking=not under_way) and not self._stopping:
                    job, copied = self._begin_copy()
                    under_way.append((job.id, self._digest(job.pages, self._page_size, copied)))
                    if copied is not None and len(under_way) < _COPIES:
                        continue
                if under_way:
                    id, digests = under_way.popleft()
                    self._done(id, digests())
        except BaseException as error:
            log.exception("a copy of KV failed")
            self._on_fatal(error)

    def _begin_copy(self) -> tuple[Promote | Demote, torch.cuda.Event | None]:
        if self._promotions:
            up = self._promotions.popleft()
            return up, self._host.put(up.slots, up.pages)
        down = self._demotions.popleft()
        return down, self._host.fetch(down.pages, down.slots)

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
