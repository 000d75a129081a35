"""Which copies of KV go down from the pool to host memory and to disk, and which come up again.

Plain Python: it names pages, slots and keys, and orders copies (`jobs`) that a copier makes. A block is
the KV of one page of tokens, named by its key. Its KV may be in a pool page that the radix cache owns, in a
host slot, in a file, or in several of them.

    pool page  -- Demote -->  host slot  -- Save -->  file
    pool page  <-- Promote -- host slot  <-- Load --  file

A page is copied down while it is still cached, before the pool needs it, so that an eviction does not wait. A
page that is evicted during its copy is LEAVING: it is free when the copy has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Final, TypeAlias

from common.block_hash import BlockHash
from common.block_key import BlockKey
from engine.kv_cache.journal import CacheChange, CacheJournal
from engine.kv_tiers.jobs import Demote, Done, Job, Load, Promote, Remove, Save
from engine.kv_tiers.level import Level
from engine.kv_tiers.limits import TierLimits
from engine.kv_tiers.stats import Fault, Tier, TierCounts, TierStats

_Answered: TypeAlias = Demote | Promote | Save | Load

__all__ = ["Ended", "KVTiers"]


@dataclass(slots=True)
class Ended:
    """What ended jobs mean for the pool."""

    freed: list[int] = field(default_factory=list)
    """Pages that were LEAVING."""
    promotions: list[tuple[int, list[Tier]]] = field(default_factory=list)
    """Ids, and where the pages came from that are verified, from the first on."""


_DEMOTIONS: Final = 2
_SAVES: Final = 4
"""Jobs of a kind that are under way at a time."""


class KVTiers:
    """Places of all blocks, and the jobs under way.

    Whenever something has changed, call `plan`, and send what `take_jobs` returns; report ends to `ended`.
    """

    def __init__(self, limits: TierLimits, *, page_bytes: int = 1) -> None:
        self.limits = limits
        self.host = Level(limits.host_slots)
        self.disk = Level(limits.disk_files)
        self.counts = TierCounts()
        self.version = 0
        """Changes whenever `ready`, `is_coming` or `load` may answer differently."""
        self._page_bytes = page_bytes
        self._page_of: dict[BlockKey, int] = {}
        """Blocks that the radix cache has, and the same by page."""
        self._cached: dict[int, tuple[BlockKey, BlockHash]] = {}
        self._copied: set[BlockKey] = set()
        """Blocks that the radix cache has and a tier too."""
        self._reported: dict[BlockKey, tuple[BlockHash, bool]] = {}
        """All blocks that are anywhere, and whether the pool lacks them."""
        self._journal = CacheJournal()
        self._unsettled: list[BlockKey] = []
        """Cached while a step in flight may still be writing their pages."""
        self._fresh: deque[BlockKey] = deque()
        """Cached without a copy, oldest first. Entries become stale."""
        self._unsaved: deque[BlockKey] = deque()
        """In host memory without a file, oldest first. Entries become stale."""
        self._copying: set[int] = set()
        """Pages that are being copied down and still cached."""
        self._leaving: set[int] = set()
        """Pages that are being copied down, and were evicted since."""
        self._promoting: set[BlockKey] = set()
        self._from_disk: set[BlockKey] = set()
        """In host memory because they were loaded, and not promoted since."""
        self._jobs: dict[int, tuple[Job, tuple[BlockKey, ...]]] = {}
        self._numbers = count(1)
        self._outbox: list[Job] = []
        self._save_at = 0.0

    # ------------------------------------------------------------------------------ the pool

    @property
    def num_copying(self) -> int:
        """Cached pages that would not be free at once if they were evicted."""
        return len(self._copying)

    @property
    def num_returning(self) -> int:
        """Pages that will be free, or evictable, when the copies under way have ended."""
        return len(self._copying) + len(self._leaving)

    @property
    def leaving(self) -> frozenset[int]:
        return frozenset(self._leaving)

    def key_of(self, page: int) -> BlockKey:
        """Of a page that the radix cache owns."""
        return self._cached[page][0]

    def cached(self, blocks: Iterable[tuple[BlockKey, BlockHash, int]]) -> None:
        """The radix cache owns these pages from now on: key, hash and page of each."""
        for key, hash, page in blocks:
            self._page_of[key] = page
            self._cached[page] = key, hash
            self._unsettled.append(key)
            self._review(key, hash)

    def settle(self) -> None:
        """No step in flight writes the pages that have been cached until now."""
        self._fresh += self._unsettled
        self._unsettled.clear()

    def evicted(self, pages: Iterable[int]) -> list[int]:
        """The radix cache has given up these pages. Returns those that are LEAVING; the others are free."""
        leaving = []
        for page in pages:
            key, hash = self._cached.pop(page)
            del self._page_of[key]
            if page in self._copying:
                self._copying.remove(page)
                self._leaving.add(page)
                leaving.append(page)
            elif key not in self.host and key not in self.disk:
                self.counts.dropped += 1
            self._review(key, hash)
        return leaving

    def revoke(self, keys: Iterable[BlockKey]) -> None:
        """Their KV is invalid: no copy of it may be used."""
        for key in keys:
            self.host.revoke(key)
            self.disk.revoke(key)
        self._tidy()

    # ------------------------------------------------------------------------------ requests

    def touch(self, keys: Sequence[BlockKey]) -> None:
        """A request wants these blocks, the first of a sequence. Later ones of a sequence are lost first."""
        self.host.touch(reversed(keys))
        self.disk.touch(reversed(keys))

    def ready(self, keys: Sequence[BlockKey]) -> int:
        """How many of these, from the first on, can be promoted now."""
        return sum(1 for _ in takewhile(lambda key: key in self.host and key not in self._promoting, keys))

    def holds(self, keys: Sequence[BlockKey]) -> int:
        """How many of these, from the first on, are on any tier."""
        return sum(1 for _ in takewhile(lambda key: key in self.host or key in self.disk, keys))

    def is_coming(self, key: BlockKey) -> bool:
        """Whether a job under way brings the block nearer to the pool."""
        return key in self._promoting or self.host.is_filling(key)

    def promote(self, keys: Sequence[BlockKey], pages: Sequence[int]) -> int:
        """Order the copies of `ready` blocks to pages that the caller has set aside; returns the job's id."""
        slots = tuple(self.host.read(key).slot for key in keys)
        self._promoting.update(keys)
        return self._order(Promote(next(self._numbers), slots, tuple(pages)), keys)

    def load(self, keys: Sequence[BlockKey]) -> None:
        """Order the reads of these blocks, as far as they are on disk only, and as budget and room last."""
        under_way = self._under_way(Load)
        for key in keys:
            if under_way >= self.limits.loads:
                return
            copy = self.disk.get(key)
            if copy is None or key in self.host or self.host.is_filling(key):
                continue
            slot = self.host.begin(key, copy.hash)
            if slot is None:
                return
            self.disk.read(key)
            self._order(Load(next(self._numbers), key, copy.hash, slot), (key,))
            under_way += 1
        self._tidy()

    def restore(self, files: Iterable[tuple[BlockKey, BlockHash]]) -> None:
        """Files that an earlier process has left, from the least to the most recently used."""
        for key, hash in files:
            if self.disk.begin(key, hash) is not None:
                self.disk.complete(key, digest=0)  # that of the file's header is read with the file
                self._review(key, hash)
        self._tidy()

    # ------------------------------------------------------------------------------ jobs

    def plan(self, num_free: int, now: float) -> None:
        """Order copies down, within the budgets. `num_free`: free pages of the pool."""
        self._plan_demotions(num_free)
        self._plan_saves(now)
        self._tidy()

    def take_jobs(self) -> list[Job]:
        jobs, self._outbox = self._outbox, []
        return jobs

    def ended(self, dones: Iterable[Done], now: float) -> Ended:
        result = Ended()
        for done in dones:
            job, keys = self._jobs.pop(done.id)
            match job:
                case Demote():
                    self._demoted(job, keys, done, result)
                case Promote():
                    self.version += 1
                    result.promotions.append((job.id, self._promoted(keys, done)))
                case Save():
                    self._saved(job, done, now)
                case Load():
                    self.version += 1
                    self._loaded(job, done)
        self._tidy()
        return result

    # ------------------------------------------------------------------------------ reports

    def take_changes(self) -> list[CacheChange]:
        """Blocks that have appeared in the pool or on a tier, or left one, since the last call."""
        return self._journal.take()

    def contents(self) -> list[CacheChange]:
        """All blocks that are in the pool or on a tier, as changes since there was nothing."""
        return [
            CacheChange(
                True, [hash for hash, is_below in self._reported.values() if is_below is below], below
            )
            for below in (False, True)
        ]

    def stats(self) -> TierStats:
        return TierStats(
            counts=self.counts,
            pages={Tier.HOST: len(self.host), Tier.DISK: len(self.disk)},
            capacity={Tier.HOST: self.host.num_slots, Tier.DISK: self.disk.num_slots},
            page_bytes=self._page_bytes,
        )

    # ------------------------------------------------------------------------------ inside

    def _plan_demotions(self, num_free: int) -> None:
        lacking = self.limits.ahead - num_free - len(self._copied) - self.num_returning
        under_way = self._under_way(Demote)
        while lacking > 0 and under_way < _DEMOTIONS:
            batch = self._next_to_copy(min(self.limits.batch, lacking))
            if not batch:
                return
            keys, pages, slots = zip(*batch, strict=True)
            self._copying.update(pages)
            self._order(Demote(next(self._numbers), pages, slots), keys)
            lacking -= len(batch)
            under_way += 1

    def _next_to_copy(self, most: int) -> list[tuple[BlockKey, int, int]]:
        """Key, page and new slot of cached pages that have no copy."""
        batch: list[tuple[BlockKey, int, int]] = []
        while self._fresh and len(batch) < most:
            key = self._fresh.popleft()
            page = self._page_of.get(key)
            if page is None or key in self._copied or self.host.is_filling(key):
                continue
            slot = self.host.begin(key, self._cached[page][1])
            if slot is None:
                self._fresh.appendleft(key)  # all slots are being read or written
                break
            batch.append((key, page, slot))
        return batch

    def _plan_saves(self, now: float) -> None:
        if not self.disk.num_slots or now < self._save_at:
            return
        under_way = self._under_way(Save)
        while self._unsaved and under_way < _SAVES:
            key = self._unsaved.popleft()
            copy = self.host.get(key)
            if copy is None or self.disk.begin(key, copy.hash) is None:
                continue
            self._tidy()  # the file that made room is removed first: it may be the next to be saved
            self.host.read(key)
            assert copy.digest is not None
            self._order(Save(next(self._numbers), key, copy.hash, copy.digest, copy.slot), (key,))
            under_way += 1

    def _demoted(self, job: Demote, keys: Sequence[BlockKey], done: Done, result: Ended) -> None:
        for key, page, digest in zip(keys, job.pages, done.digests, strict=True):
            if page in self._leaving:
                self._leaving.remove(page)
                result.freed.append(page)
                self.version += 1
            else:
                self._copying.remove(page)
            if digest is None:
                self.host.abandon(key)
                self._want_copy(key)
            elif self.host.complete(key, digest):
                self.counts.demoted += 1
                self._unsaved.append(key)
                self._review(key)

    def _promoted(self, keys: Sequence[BlockKey], done: Done) -> list[Tier]:
        """Sources of the blocks that have arrived before the first that has not."""
        sources: list[Tier] = []
        bad: list[BlockKey] = []
        for index, (key, digest) in enumerate(zip(keys, done.digests, strict=True)):
            copy = self.host.get(key)
            if copy is not None and copy.digest != digest:
                bad.append(key)
            elif copy is not None and len(sources) == index:
                sources.append(Tier.DISK if key in self._from_disk else Tier.HOST)
                self._from_disk.discard(key)
            self._promoting.remove(key)
            self.host.release(key)
        for tier in sources:
            self.counts.promoted[tier] += 1
        self.counts.faults[Fault.DIGEST] += len(bad)
        self.revoke(bad)
        return sources

    def _saved(self, job: Save, done: Done, now: float) -> None:
        self.host.release(job.key)
        if done.digests[0] is not None:
            if self.disk.complete(job.key, job.digest):
                self.counts.saved += 1
                self._review(job.key)
            return
        self.disk.abandon(job.key)
        self._unsaved.append(job.key)
        self.counts.faults[Fault.SAVE] += 1
        self._save_at = now + self.limits.disk_pause_s

    def _loaded(self, job: Load, done: Done) -> None:
        self.disk.release(job.key)
        digest = done.digests[0]
        if digest is not None:
            if self.host.complete(job.key, digest):
                self.counts.loaded += 1
                self._from_disk.add(job.key)
                self._review(job.key)
            return
        self.host.abandon(job.key)
        self.disk.revoke(job.key)
        self.counts.faults[Fault.LOAD] += 1
        self._want_copy(job.key)

    def _order(self, job: _Answered, keys: Sequence[BlockKey]) -> int:
        self._jobs[job.id] = job, tuple(keys)
        self._outbox.append(job)
        return job.id

    def _under_way(self, kind: type[_Answered]) -> int:
        return sum(isinstance(job, kind) for job, _ in self._jobs.values())

    def _tidy(self) -> None:
        """Take note of the blocks that have left a tier."""
        for key, _ in self.host.lost:
            self._from_disk.discard(key)
            self._review(key)
            self._want_copy(key)
        self.host.lost.clear()
        for key, hash in self.disk.lost:
            self._outbox.append(Remove(key, hash))
            self._review(key)
            self._want_copy(key)
        self.disk.lost.clear()

    def _want_copy(self, key: BlockKey) -> None:
        if key in self._page_of and key not in self._copied:
            self._fresh.append(key)

    def _review(self, key: BlockKey, hash: BlockHash | None = None) -> None:
        """The places of a block have changed. `hash`: of one that may be new."""
        is_copied = key in self.host or key in self.disk
        is_cached = key in self._page_of
        (self._copied.add if is_copied and is_cached else self._copied.discard)(key)
        known = self._reported.get(key)
        if not (is_copied or is_cached):
            if known is not None:
                del self._reported[key]
                self._journal.removed([known[0]])
            return
        if known is not None:
            hash = known[0]
        elif hash is None and (copy := self.host.get(key) or self.disk.get(key)) is not None:
            hash = copy.hash
        assert hash is not None
        if known != (hash, not is_cached):
            self._reported[key] = hash, not is_cached
            self._journal.stored([hash], below=not is_cached)
