"""Does the tiers' jobs in threads: one copies between pool and host memory, others read and write files."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final, Protocol, TypeAlias

import torch

from common.block_hash import BlockHash
from common.block_key import PageKey
from engine.device.current import enter_device
from engine.kv.cache.sidecars import NO_SIDECARS, Sidecars
from engine.kv.tiers.host_pages import Bytes, HostPages
from engine.kv.tiers.jobs import FOUND, Demote, Done, Forget, Job, Load, Promote, Remove, Save, StoreLate
from engine.kv.tiers.slot_records import SlotRecords

log = logging.getLogger(__name__)


Digest: TypeAlias = Callable[[Sequence[int], int, torch.cuda.Event | None], Callable[[], list[int]]]
"""Digest pool pages once an event has happened. The number is that of tokens of the last page that count.
Returns at once; the function returned waits for the digests."""

_NEXT_LOOK_S: Final = 1.0
"""After a look that has found something: there may be more."""
_COPIES: Final = 2
"""Jobs that a GPU has at a time, so that its copies continue while the host learns of their ends."""


class Files(Protocol):
    """Pages in files, or in something like files."""

    @property
    def readers(self) -> int:
        """Threads that may call `read`."""

    @property
    def writers(self) -> int:
        """Threads that may call `write` and `remove`, of one page only one at a time."""

    @property
    def look_s(self) -> float:
        """Seconds between calls of `look`; 0: never, as only this process writes these files."""

    def look(self) -> list[tuple[PageKey, BlockHash]]:
        """Files that others have written. Raises StoreLate."""

    def write(self, key: PageKey, hash: BlockHash, digest: int, *content: Bytes) -> None:
        """Write a page's KV and sidecars. Raises OSError, and leaves nothing behind then."""

    def read(self, key: PageKey, hash: BlockHash, *into: Bytes) -> int | None:
        """Read a file's content, and return the digest that it should have; None: this is not the file.

        Raises StoreLate.
        """

    def remove(self, key: PageKey, hash: BlockHash) -> None: ...

    def forget(self, key: PageKey, hash: BlockHash) -> None:
        """Let `look` return this file again, if it is there."""

    def close(self) -> None: ...


class BackgroundCopier:
    """`engine.kv.tiers.jobs.Copier`, to be started and stopped once.

    The device's thread does promotions before demotions: a request waits for them.
    """

    def __init__(
        self,
        host: HostPages,
        digest: Digest,
        page_size: int,
        files: Files | None = None,
        *,
        sidecars: Sidecars = NO_SIDECARS,
        device: str = "cpu",
        wake: Callable[[], None] = lambda: None,
        on_fatal: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """`digest` is called by one thread only. `wake` is called after each job, `on_fatal` when a thread
        fails, such as for an error of the device, both from the threads."""
        self._host = host
        self._records = SlotRecords(sidecars, host.num_slots)
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
        self._stopped = threading.Event()
        writers, self._num_readers = (files.writers, files.readers) if files is not None else (1, 1)
        self._writes: list[SimpleQueue[Save | Remove | Forget | None]] = [
            SimpleQueue() for _ in range(writers)
        ]
        """Queues of writers. A page always uses the same one, so that its writes and removals stay in order.
        """
        self._reads: SimpleQueue[Load | None] = SimpleQueue()
        loops: list[tuple[Callable[[], None], str]] = [(self._copy, "kv-copies")]
        loops += [(partial(self._write, writes), "kv-writes") for writes in self._writes]
        loops += [(self._read, "kv-reads")] * self._num_readers
        if files is not None and files.look_s:
            loops.append((self._look, "kv-looks"))
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=name, daemon=True) for loop, name in loops
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the jobs being done; those queued are dropped, except the files to be written."""
        self._stopping = True
        self._copies_wanted.release()
        self._stopped.set()
        for writes in self._writes:
            writes.put(None)
        for _ in range(self._num_readers):
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
            case Save() | Remove() | Forget():
                self._writes[job.key[0] % len(self._writes)].put(job)
            case Load():
                self._reads.put(job)

    def poll(self) -> list[Done]:
        dones: list[Done] = []
        while self._dones:
            dones.append(self._dones.popleft())
        return dones

    # ------------------------------------------------------------------------------ threads

    def _run(self, loop: Callable[[], None]) -> None:
        """A thread that ended by itself would leave jobs without an end, and requests that wait for them."""
        try:
            loop()
        except BaseException as error:
            log.exception("a copy of KV failed")
            self._on_fatal(error)

    def _copy(self) -> None:
        under_way: deque[tuple[Promote | Demote, Callable[[], list[int]]]] = deque()
        enter_device(self._device)
        while under_way or not self._stopping:
            if self._copies_wanted.acquire(blocking=not under_way) and not self._stopping:
                job, copied = self._begin_copy()
                under_way.append((job, self._digest(job.pages, self._page_size, copied)))
                if copied is not None and len(under_way) < _COPIES:
                    continue
            if under_way:
                job, digests = under_way.popleft()
                self._done(Done(job.id, self._records.sealed(job, digests())))

    def _begin_copy(self) -> tuple[Promote | Demote, torch.cuda.Event | None]:
        if self._promotions:
            up = self._promotions.popleft()
            self._records.copy(up)
            return up, self._host.put(up.slots, up.pages)
        down = self._demotions.popleft()
        self._records.copy(down)
        return down, self._host.fetch(down.pages, down.slots)

    def _write(self, writes: SimpleQueue[Save | Remove | Forget | None]) -> None:
        while (job := writes.get()) is not None:
            assert self._files is not None
            if not isinstance(job, Save):
                act = self._files.remove if isinstance(job, Remove) else self._files.forget
                act(job.key, job.hash)
                continue
            digest: int | None = job.digest
            late = False
            try:
                content = self._host.slot(job.slot), *self._records.of(job.slot)
                self._files.write(job.key, job.hash, job.digest, *content)
            except OSError as error:
                log.warning("cannot write KV to a file: %s", error)
                digest, late = None, isinstance(error, StoreLate)
            self._done(Done(job.id, (digest,), late))

    def _read(self) -> None:
        while (job := self._reads.get()) is not None:
            assert self._files is not None
            digest, late = None, False
            try:
                if not self._stopping:
                    into = self._host.slot(job.slot), *self._records.of(job.slot)
                    digest = self._files.read(job.key, job.hash, *into)
            except StoreLate as error:
                log.warning("cannot read KV from a file: %s", error)
                late = True
            self._done(Done(job.id, (digest,), late))

    def _look(self) -> None:
        assert self._files is not None
        while not self._stopped.is_set():
            some: list[tuple[PageKey, BlockHash]] = []
            try:
                some = self._files.look()
            except StoreLate as error:
                log.warning("cannot list the files of KV: %s", error)
            if some:
                self._done(Done(FOUND, (), found=tuple(some)))
            self._stopped.wait(_NEXT_LOOK_S if some else self._files.look_s)

    def _done(self, done: Done) -> None:
        self._dones.append(done)
        self._wake()
