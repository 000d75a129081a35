"""A copier whose memory can be read, damaged and delayed: the shell of tiers in tests."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableSequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from common.block_hash import BlockHash
from common.block_key import PageKey
from engine.kv.cache.sidecars import NO_SIDECARS, Sidecars
from engine.kv.tiers.jobs import FOUND, Demote, Done, Forget, Job, Load, Promote, Remove, Save

Place: TypeAlias = tuple[Literal["page", "slot"], int]


def _reads_and_writes(job: Demote | Promote | Save | Load) -> tuple[set[Place], set[Place]]:
    match job:
        case Demote(_, pages, slots):
            return {("page", page) for page in pages}, {("slot", slot) for slot in slots}
        case Promote(_, slots, pages):
            return {("slot", slot) for slot in slots}, {("page", page) for page in pages}
        case Save():
            return {("slot", job.slot)}, set()
        case Load():
            return set(), {("slot", job.slot)}


@dataclass
class FakeCopier:
    """Pages are lists of numbers. Jobs wait in two queues, one of the device and one of the disk, until
    `work` does them in order.

    Threads of a real copier work beside each other: it refuses a job that writes what another one under way
    reads or writes. Nor does it find a file by its key alone.
    """

    pool: MutableSequence[list[int]]
    num_slots: int
    slots: dict[int, list[int]] = field(default_factory=dict)
    files: dict[PageKey, tuple[int, list[int]]] = field(default_factory=dict)
    """Digest and content."""
    sidecars: Sidecars = NO_SIDECARS
    records: dict[int | PageKey, bytes] = field(default_factory=dict)
    """What the sidecars have of pages in slots and files."""
    hashes: dict[PageKey, BlockHash] = field(default_factory=dict)
    """Hashes of all pages that were ever saved."""
    disk_full: bool = False
    late: bool = False
    """The store of files does not answer."""
    device_jobs: deque[Any] = field(default_factory=deque)
    disk_jobs: deque[Any] = field(default_factory=deque)
    dones: list[Done] = field(default_factory=list)
    under_way: dict[int, tuple[set[Place], set[Place]]] = field(default_factory=dict)
    """For each job, what it reads and what it writes."""

    def submit(self, job: Job) -> None:
        if not isinstance(job, Remove | Forget):
            self._check(job)
        (self.device_jobs if isinstance(job, Demote | Promote) else self.disk_jobs).append(job)

    def poll(self) -> list[Done]:
        dones, self.dones = self.dones, []
        for done in dones:
            self.under_way.pop(done.id, None)
        return dones

    def _check(self, job: Demote | Promote | Save | Load) -> None:
        reads, writes = _reads_and_writes(job)
        assert job.id not in self.under_way, "two jobs of one number"
        assert all(0 <= slot < self.num_slots for kind, slot in reads | writes if kind == "slot")
        for other_reads, other_writes in self.under_way.values():
            assert writes.isdisjoint(other_reads | other_writes), "a copy under way is overwritten"
            assert reads.isdisjoint(other_writes), "a copy reads what another one writes"
        self.under_way[job.id] = reads, writes

    def work(self, *, disk: bool, most: int = 1_000_000) -> None:
        jobs = self.disk_jobs if disk else self.device_jobs
        for _ in range(min(most, len(jobs))):
            self._do(jobs.popleft())

    def find(self, key: PageKey) -> None:
        """A file turns out to be there."""
        self.dones.append(Done(FOUND, (), found=((key, self.hashes[key]),)))

    def _do(self, job: Job) -> None:
        match job:
            case Save(id) | Load(id) if self.late:
                self.dones.append(Done(id, (None,), late=True))
            case Demote(id, pages, slots):
                for page, slot in zip(pages, slots, strict=True):
                    assert 0 <= slot < self.num_slots
                    self.slots[slot] = self.pool[page].copy()
                    self.records[slot] = self.sidecars.read(page)
                self._done(id, [self._digest(page) for page in pages])
            case Promote(id, slots, pages):
                for slot, page in zip(slots, pages, strict=True):
                    self.pool[page][:] = self.slots[slot]
                    self.sidecars.put(page, self.records[slot])
                self._done(id, [self._digest(page) for page in pages])
            case Save(id, key, hash, digest, slot):
                self.hashes[key] = hash
                if not self.disk_full:
                    self.files[key] = digest, self.slots[slot].copy()
                    self.records[key] = self.records[slot]
                self._done(id, [None if self.disk_full else digest])
            case Load(id, key, hash, slot):
                assert self.hashes[key] == hash, "there is no such file"
                if (file := self.files.get(key)) is not None:
                    self.slots[slot] = file[1].copy()
                    self.records[slot] = self.records[key]
                self._done(id, [None if file is None else file[0]])
            case Remove(key, hash):
                assert self.hashes[key] == hash, "there is no such file"
                self.files.pop(key, None)

    def _digest(self, page: int) -> int:
        return hash((tuple(self.pool[page]), self.sidecars.read(page)))

    def _done(self, id: int, digests: list[Any]) -> None:
        self.dones.append(Done(id, tuple(digests)))
