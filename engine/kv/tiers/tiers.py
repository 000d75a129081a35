"""Which copies of KV go down from the pool to host memory and to disk, and which come up again.

Plain Python: it names pages, slots and keys, and orders copies (`jobs`) that a copier makes. A key names a
page of KV: of one group of layers, or a part of a recurrent state. It may be in a pool page that the radix
cache owns, in a host slot, in a file, or in several of them.

    pool page  -- Demote -->  host slot  -- Save -->  file
    pool page  <-- Promote -- host slot  <-- Load --  file

A page is copied down while it is still cached, before the pool needs it, so that an eviction does not wait. A
page that is evicted during its copy is LEAVING: it is free when the copy has ended. Pages of states are
copied first: a checkpoint is evicted for want of slots, not of pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import takewhile

from common.block_hash import BlockHash
from common.block_key import PageKey, part_of
from common.kv_groups import ONE_GROUP, KVGroup
from engine.kv.cache.journal import CacheChange
from engine.kv.tiers.copy_ledger import CopyLedger
from engine.kv.tiers.demotions import Demotions
from engine.kv.tiers.jobs import FOUND, Demote, Done, EndedJobs, Job, Load, Promote, Remove, Save
from engine.kv.tiers.level import Level
from engine.kv.tiers.limits import TierLimits
from engine.kv.tiers.report import PlaceReport
from engine.kv.tiers.stats import Fault, Tier, TierCounts, TierStats


class KVTiers:
    """Places of all pages, and the jobs under way.

    Whenever something has changed, call `plan`, and send what `take_jobs` returns; report ends to `ended`.
    """

    def __init__(
        self, limits: TierLimits, *, page_bytes: int = 1, groups: Sequence[KVGroup] = ONE_GROUP
    ) -> None:
        """Parts of a block from number `len(groups)` on are those of a state."""
        self.limits = limits
        self.host = Level(limits.host_slots)
        self.disk = Level(limits.disk_files)
        self.counts = TierCounts()
        self.version = 0
        """Changes when `ready`, `is_coming` or `load` may, or when a tier gets a page that the pool lacks."""
        self._page_bytes = page_bytes
        self._num_groups = len(groups)
        full = (number for number, group in enumerate(groups) if group.window is None)
        self._reported_part = next(full, None)
        """None: without a full group the pages of a prefix do not tell where the prefix is."""
        self._report = PlaceReport()
        self._page_of: dict[PageKey, int] = {}
        """Pages that the cache has, and the same by page."""
        self._cached: dict[int, tuple[PageKey, BlockHash]] = {}
        self._wanted: set[PageKey] = set()
        """Pages that the cache has, and a tier should have too."""
        self._unsettled: dict[PageKey, None] = {}
        """Pages without a copy that a step in flight may still be writing."""
        self._pages, self._states = Demotions(), Demotions()
        self._unsaved: OrderedDict[PageKey, None] = OrderedDict()
        """In host memory without a file, oldest first; empty if there is no tier below."""
        self._promoting: set[PageKey] = set()
        self._from_disk: set[PageKey] = set()
        """In host memory because they were loaded, and not promoted since."""
        self._jobs = CopyLedger()
        self._save_at = 0.0

    # ------------------------------------------------------------------------------ the pool

    @property
    def num_copying(self) -> int:
        """Cached pages that would not be free at once if they were evicted, without those of states."""
        return len(self._pages.copying)

    @property
    def num_returning(self) -> int:
        """Pages that will be free, or evictable, when the copies under way have ended, without states."""
        return len(self._pages.copying) + len(self._pages.leaving)

    @property
    def leaving(self) -> frozenset[int]:
        """Without those of states."""
        return frozenset(self._pages.leaving)

    def is_copying(self, state_page: int) -> bool:
        """Whether a copy down reads this page of a state."""
        return state_page in self._states.copying or state_page in self._states.leaving

    def cached(self, pages: Iterable[tuple[PageKey, BlockHash, int]]) -> None:
        """The cache owns these pages from now on: key, hash of the block, and page of each."""
        for key, hash, page in pages:
            self._page_of[key] = page
            self._cached[page] = key, hash
            self._review(key, hash)

    def want(self, pages: Iterable[int]) -> None:
        """Cached pages are to be copied down, when no step writes them any more."""
        for page in pages:
            key = self._cached[page][0]
            self._wanted.add(key)
            if key not in self._down(key).copied:
                self._unsettled[key] = None

    def settle(self) -> None:
        """No step in flight writes the pages that have been cached until now."""
        for key in self._unsettled:
            self._down(key).fresh[key] = None
        self._unsettled.clear()

    def evicted(self, pages: Iterable[int]) -> list[int]:
        """The cache has given up these pages. Returns those that are LEAVING; the others are free."""
        leaving = []
        for page in pages:
            key, hash = self._cached.pop(page)
            del self._page_of[key]
            self._unsettled.pop(key, None)
            if self._down(key).evicted(key, page):
                leaving.append(page)
            elif key in self._wanted and key not in self:
                self.counts.dropped += 1
            self._wanted.discard(key)
            self._review(key, hash)
        return leaving

    def revoke(self, keys: Iterable[PageKey]) -> None:
        """Their KV is invalid: no copy of it may be used."""
        for key in keys:
            self.host.revoke(key)
            self.disk.revoke(key)
        self._tidy()

    def clear(self, tier: Tier, blocks: Collection[BlockHash] | None) -> int:
        """Remove the copies of these blocks from a tier, or all (None); returns how many there were.

        O(copies). Copies under way to it end unused; a block that the cache still has may go down again.
        """
        if tier not in (Tier.HOST, self.limits.below):
            return 0
        level = self.host if tier is Tier.HOST else self.disk
        keys = [key for key in level.held() if blocks is None or level.hash_of(key) in blocks]
        for key in keys:
            level.revoke(key)
        self.version += 1
        self._tidy()
        return len(keys)

    # ------------------------------------------------------------------------------ requests

    def touch(self, keys: Sequence[PageKey]) -> None:
        """A request wants these pages, the first of a sequence. Later ones of a sequence are lost first."""
        self.host.touch(reversed(keys))
        self.disk.touch(reversed(keys))

    def ready(self, keys: Sequence[PageKey]) -> int:
        """How many of these, from the first on, can be promoted now."""
        return sum(1 for _ in takewhile(lambda key: key in self.host and key not in self._promoting, keys))

    def __contains__(self, key: PageKey) -> bool:
        """Whether the page is on any tier."""
        return key in self.host or key in self.disk

    def is_coming(self, key: PageKey) -> bool:
        """Whether a job under way brings the page nearer to the pool."""
        return key in self._promoting or self.host.is_filling(key)

    def promote(self, keys: Sequence[PageKey], pages: Sequence[int]) -> int:
        """Order the copies of `ready` pages to those that the caller has set aside; returns the job's id."""
        slots = tuple(self.host.read(key).slot for key in keys)
        self._promoting.update(keys)
        return self._jobs.order(keys, lambda id: Promote(id, slots, tuple(pages)))

    def load(self, keys: Sequence[PageKey]) -> None:
        """Order the reads of these pages, as far as they are on disk only, and as budget and room last."""
        under_way = self._jobs.num_under_way(Load)
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
            self._jobs.order((key,), partial(Load, key=key, hash=copy.hash, slot=slot))
            under_way += 1
        self._tidy()

    def restore(self, files: Iterable[tuple[PageKey, BlockHash]]) -> None:
        """Files that an earlier process has left, or others have written, from the least to the most recently
        used."""
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
        return self._jobs.take()

    def ended(self, dones: Iterable[Done], now: float) -> EndedJobs:
        result = EndedJobs()
        for done in dones:
            if done.id == FOUND:
                self.version += 1
                self.restore(done.found)
                continue
            job, keys = self._jobs.end(done.id)
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
        return self._report.take()

    def contents(self) -> list[CacheChange]:
        """All blocks that are in the pool or on a tier, as changes since there was nothing."""
        return self._report.contents()

    def stats(self) -> TierStats:
        below = self.limits.below
        return TierStats(
            counts=self.counts,
            pages=dict.fromkeys(Tier, 0) | {Tier.HOST: len(self.host), below: len(self.disk)},
            capacity=dict.fromkeys(Tier, 0) | {Tier.HOST: self.host.num_slots, below: self.disk.num_slots},
            page_bytes=self._page_bytes,
        )

    # ------------------------------------------------------------------------------ inside

    def _plan_demotions(self, num_free: int) -> None:
        # All cached pages get a copy: copies of pages that have just come up, or that every request reads,
        # keep none of those from being dropped that are evicted next. Where the pool has more pages than the
        # host, as many as there are slots: more would push out each other's copies.
        lacking = self.host.num_slots - num_free - len(self._pages.copied) - self.num_returning
        under_way = self._jobs.num_under_way(Demote)
        while under_way < self.limits.demotions:
            down, batch = self._states, self._next_to_copy(self._states, self.limits.batch)
            if not batch:
                down, batch = self._pages, self._next_to_copy(self._pages, min(self.limits.batch, lacking))
                lacking -= len(batch)
            if not batch:
                return
            keys, pages, slots = zip(*batch, strict=True)
            down.copying.update(pages)
            self._jobs.order(keys, partial(Demote, pages=pages, slots=slots))
            under_way += 1

    def _next_to_copy(self, down: Demotions, most: int) -> list[tuple[PageKey, int, int]]:
        """Key, page and new slot of cached pages that have no copy."""
        batch: list[tuple[PageKey, int, int]] = []
        while down.fresh and len(batch) < most:
            key, _ = down.fresh.popitem(last=False)
            page = self._page_of.get(key)
            if page is None or key in down.copied or self.host.is_filling(key):
                continue
            slot = self.host.begin(key, self._cached[page][1])
            if slot is None:
                down.fresh[key] = None  # all slots are being read or written
                down.fresh.move_to_end(key, last=False)
                break
            batch.append((key, page, slot))
        return batch

    def _plan_saves(self, now: float) -> None:
        if not self.disk.num_slots or now < self._save_at:
            return
        under_way = self._jobs.num_under_way(Save)
        while self._unsaved and under_way < self.limits.saves:
            key, _ = self._unsaved.popitem(last=False)
            copy = self.host.get(key)
            if copy is None or self.disk.begin(key, copy.hash) is None:
                continue
            self._tidy()  # the file that made room is removed first: it may be the next to be saved
            self.host.read(key)
            assert copy.digest is not None
            save = partial(Save, key=key, hash=copy.hash, digest=copy.digest, slot=copy.slot)
            self._jobs.order((key,), save)
            under_way += 1

    def _demoted(self, job: Demote, keys: Sequence[PageKey], done: Done, result: EndedJobs) -> None:
        for key, page, digest in zip(keys, job.pages, done.digests, strict=True):
            if self._down(key).ended(page):
                result.freed.append(page)
                self.version += 1
            if digest is None:
                self.host.abandon(key)
                self._want_copy(key)
            elif self.host.complete(key, digest):
                self.counts.demoted += 1
                if self.disk.num_slots:
                    self._unsaved[key] = None
                self._review(key)

    def _promoted(self, keys: Sequence[PageKey], done: Done) -> list[Tier]:
        """Sources of the pages that have arrived before the first that has not."""
        sources: list[Tier] = []
        bad: list[PageKey] = []
        for index, (key, digest) in enumerate(zip(keys, done.digests, strict=True)):
            copy = self.host.get(key)
            if copy is not None and copy.digest != digest:
                bad.append(key)
            elif copy is not None and len(sources) == index:
                sources.append(self.limits.below if key in self._from_disk else Tier.HOST)
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
        self._unsaved[job.key] = None
        self.counts.faults[Fault.LATE if done.late else Fault.SAVE] += 1
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
        (self.disk.drop if done.late else self.disk.revoke)(job.key)
        self.counts.faults[Fault.LATE if done.late else Fault.LOAD] += 1
        self._want_copy(job.key)

    def _tidy(self) -> None:
        """Note the pages that have left a tier."""
        for key, _, _ in self.host.lost:
            self._from_disk.discard(key)
            self._unsaved.pop(key, None)
            self._review(key)
            self._want_copy(key)
        self.host.lost.clear()
        for key, hash, is_revoked in self.disk.lost:
            if is_revoked or self.limits.below is Tier.DISK:
                self._jobs.remove(Remove(key, hash))
            self._review(key)
            self._want_copy(key)
        self.disk.lost.clear()

    def _want_copy(self, key: PageKey) -> None:
        """A copy is lost. Those of states are not made again: they would take turns with those of pages."""
        is_page = self._down(key) is self._pages
        if is_page and key in self._wanted and key not in self._pages.copied and key not in self._unsettled:
            self._pages.fresh[key] = None

    def _down(self, key: PageKey) -> Demotions:
        return self._pages if part_of(key) < self._num_groups else self._states

    def _review(self, key: PageKey, hash: BlockHash | None = None) -> None:
        """The places of a page have changed. `hash`: of one that may be new."""
        is_copied, is_cached = key in self, key in self._page_of
        copied = self._down(key).copied
        (copied.add if is_copied and is_cached else copied.discard)(key)
        if part_of(key) != self._reported_part:
            return
        if hash is None and (copy := self.host.get(key) or self.disk.get(key)) is not None:
            hash = copy.hash
        self._report.moved(key, hash, is_cached=is_cached, is_copied=is_copied)
