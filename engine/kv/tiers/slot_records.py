"""Sidecars of pages that have a copy on the host: a record for each slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xxhash import xxh3_64_intdigest

from engine.kv.cache.sidecars import Sidecars
from engine.kv.tiers.host_pages import Bytes
from engine.kv.tiers.jobs import Demote, Promote


class SlotRecords:
    """Used by the thread that copies pages; `of` by those that read and write files."""

    def __init__(self, sidecars: Sidecars, num_slots: int) -> None:
        self._sidecars = sidecars
        self._slots = np.zeros((num_slots, sidecars.record_bytes), np.uint8)

    def of(self, slot: int) -> tuple[Bytes, ...]:
        """The record of a slot, writable; empty if pages have no sidecars."""
        return (self._slots[slot],) if self._sidecars.record_bytes else ()

    def copy(self, job: Demote | Promote) -> None:
        """Copy records between slots and pages of the pool. A page without rows has a record of zeros."""
        if not self._sidecars.record_bytes:
            return
        for page, slot in zip(job.pages, job.slots, strict=True):
            if isinstance(job, Promote):
                self._sidecars.put(page, self._slots[slot].tobytes())
            else:
                record = self._sidecars.read(page)
                self._slots[slot] = np.frombuffer(record, np.uint8) if record else 0

    def sealed(self, job: Demote | Promote, digests: Sequence[int]) -> tuple[int, ...]:
        """Digests of the job's pages with their records. Those of pages without rows are `digests`."""
        if not self._sidecars.record_bytes:
            return tuple(digests)
        records = [self._slots[slot].tobytes() if self._slots[slot].any() else b"" for slot in job.slots]
        return tuple(
            xxh3_64_intdigest(record, seed=digest) if record else digest
            for record, digest in zip(records, digests, strict=True)
        )
