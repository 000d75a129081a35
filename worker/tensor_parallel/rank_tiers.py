"""KV tiers of a worker with several ranks: rank 0 decides, and each rank copies its part of the pages.

The slots and the pages of a job are the same on every rank. A copy is made when all ranks have made theirs,
and verified when the digests of all are those that went down.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from common.block_hash import BlockHash
from common.block_key import PageKey
from engine.executor.runner import ModelRunner
from engine.kv.cache.sidecars import Sidecars
from engine.kv.tiers.jobs import FOUND, Copier, Done, Forget, Job, Load, Remove, Save
from kv_transfer.errors import BadMessage
from worker.config import WorkerConfig
from worker.kv_copies import Copies, TierError, open_copies
from worker.tensor_parallel.rank_messages import KINDS, DoneAnswer, File, Opened, RankSocket, StopRank
from worker.tensor_parallel.rank_sockets import RankListener, join_rank_0

_PATIENCE_S: Final = 60.0
_DIGEST_BITS: Final = 64
_Files: TypeAlias = list[tuple[PageKey, BlockHash]]


class RunningCopier(Copier, Protocol):
    def start(self) -> None: ...

    def stop(self) -> None:
        """Stop when queued files are written."""


@dataclass(frozen=True, slots=True)
class RankedCopies:
    """As `Copies`, of all ranks."""

    copier: RankedCopier
    found: _Files
    """Files of which every rank has its part."""


def open_ranks(
    config: WorkerConfig,
    runner: ModelRunner,
    host_slots: int,
    *,
    with_files: bool,
    wake: Callable[[], None],
    on_fatal: Callable[[BaseException], None],
    sidecars: Sidecars,
) -> RankedCopies:
    """On rank 0, while the other ranks call `serve_tiers`. Raises TierError."""
    with RankListener(runner.communicator, host_slots, with_files) as ranks:
        own = open_copies(
            config,
            runner,
            host_slots,
            with_files=with_files,
            wake=wake,
            on_fatal=on_fatal,
            sidecars=sidecars,
        )
        links = ranks.accept(KINDS)
    opened = [link.expect(Opened) for link in links]
    for rank in opened:
        if rank.problem:
            raise TierError(rank.problem)
    copier = RankedCopier(own.copier, links, wake)
    found = [[(file.key, file.hash) for file in rank.found] for rank in opened]
    return RankedCopies(copier, copier.common([own.found, *found]))


def serve_tiers(config: WorkerConfig, runner: ModelRunner) -> threading.Thread:
    """On other ranks: serve `open_ranks` of rank 0, until the thread returned ends."""
    link, (host_slots, with_files) = join_rank_0(runner.communicator, KINDS, 2)

    def report() -> None:
        with suppress(OSError):  # rank 0 has ended: so does this rank
            for done in copies.copier.poll():
                link.send(DoneAnswer.of(done))

    try:
        copies = open_copies(
            config,
            runner,
            host_slots,
            with_files=bool(with_files),
            wake=report,
            on_fatal=lambda _: link.end(),
        )
    except TierError as error:
        link.send(Opened(str(error), ()))
        raise
    link.send(Opened("", tuple(File(key, hash) for key, hash in copies.found)))
    copies.copier.start()
    serving = threading.Thread(target=_serve, args=(link, copies), name="kv-tiers", daemon=True)
    serving.start()
    return serving


class RankedCopier:
    """`Copier` of all ranks. A digest of a page is those of all ranks, 64 bits each."""

    def __init__(self, own: RunningCopier, links: Sequence[RankSocket], wake: Callable[[], None]) -> None:
        self._own = own
        self._links = links
        self._wake = wake
        self._arrived: deque[tuple[int, Done]] = deque()
        """Arrived results with their rank, from the readers."""
        self._parts: dict[int, dict[int, Done]] = {}
        """Results by rank, of jobs that some ranks have done."""
        self._of_files: dict[int, Save | Load] = {}
        self._half_found: list[set[tuple[PageKey, BlockHash]]] = [set() for _ in range(1 + len(links))]
        """Files that a rank has found, and not yet all others."""
        self._readers = [
            threading.Thread(target=self._read, args=(rank, link), name=f"kv-rank-{rank}", daemon=True)
            for rank, link in enumerate(links, 1)
        ]

    def common(self, found: Sequence[_Files]) -> _Files:
        """Files that all ranks have, in the order of rank 0. The parts of others are removed."""
        everywhere = set(found[0]).intersection(*found[1:])
        for rank, files in enumerate(found):
            for key, hash in files:
                if (key, hash) not in everywhere:
                    self._send(rank, Remove(key, hash))
        return [file for file in found[0] if file in everywhere]

    def start(self) -> None:
        self._own.start()
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        for link in self._links:
            with suppress(OSError):
                link.send(StopRank())
        self._own.stop()
        for reader in self._readers:
            reader.join(_PATIENCE_S)

    def submit(self, job: Job) -> None:
        if isinstance(job, Save | Load):
            self._of_files[job.id] = job
        for rank in range(1 + len(self._links)):
            self._send(rank, job)

    def poll(self) -> list[Done]:
        arrived = [(0, done) for done in self._own.poll()]
        while self._arrived:
            arrived.append(self._arrived.popleft())
        ended: list[Done] = []
        for rank, done in arrived:
            if done.id == FOUND:
                ended += self._found(rank, done)
                continue
            parts = self._parts.setdefault(done.id, {})
            parts[rank] = done
            if len(parts) == 1 + len(self._links):
                ended.append(self._joined(self._parts.pop(done.id)))
        return ended

    def _found(self, rank: int, done: Done) -> list[Done]:
        self._half_found[rank].update(done.found)
        whole = set.intersection(*self._half_found)
        for found in self._half_found:
            found -= whole
        return [Done(FOUND, (), found=tuple(whole))] if whole else []

    def _joined(self, parts: dict[int, Done]) -> Done:
        id = parts[0].id
        by_page = zip(*(parts[rank].digests for rank in range(len(parts))), strict=True)
        late = any(done.late for done in parts.values())
        joined = Done(id, tuple(_join(digests) for digests in by_page), late)
        job = self._of_files.pop(id, None)
        if job is not None and None in joined.digests:
            if isinstance(job, Save):
                self.submit(Remove(job.key, job.hash))  # the parts that other ranks have written
            elif late:  # a page is found again when all ranks have found their parts again
                self.submit(Forget(job.key, job.hash))
        return joined

    def _send(self, rank: int, job: Job) -> None:
        if isinstance(job, Save):
            job = replace(job, digest=job.digest >> rank * _DIGEST_BITS & (1 << _DIGEST_BITS) - 1)
        if rank == 0:
            self._own.submit(job)
            return
        with suppress(OSError):  # the rank has ended, so this worker will
            self._links[rank - 1].send(job)

    def _read(self, rank: int, link: RankSocket) -> None:
        with suppress(BadMessage, OSError):
            while isinstance(answer := link.receive(), DoneAnswer):
                self._arrived.append((rank, answer.done()))
                self._wake()


def _join(digests: Sequence[int | None]) -> int | None:
    """None if a rank has none."""
    total = 0
    for rank, digest in enumerate(digests):
        if digest is None:
            return None
        total |= digest << rank * _DIGEST_BITS
    return total


def _serve(link: RankSocket, copies: Copies) -> None:
    with suppress(BadMessage, OSError):
        while (job := link.receive()) is not None and not isinstance(job, (StopRank, Opened, DoneAnswer)):
            copies.copier.submit(job)
    copies.copier.stop()
    link.close()
