"""Which blocks are in the pool or on a tier, for routing by cached prefixes."""

from __future__ import annotations

from common.block_hash import BlockHash
from common.block_key import PageKey
from engine.kv.cache.journal import CacheChange, CacheJournal


class PlaceReport:
    """A block is where its page of the first full group is: every prefix through the block needs that one."""

    def __init__(self) -> None:
        self._journal = CacheJournal()
        self._blocks: dict[PageKey, tuple[BlockHash, bool]] = {}
        """All blocks that are anywhere, and whether the pool lacks them."""

    def moved(self, key: PageKey, hash: BlockHash | None, *, is_cached: bool, is_copied: bool) -> None:
        """The places of a block's page have changed. `hash`: of one that may be new."""
        known = self._blocks.get(key)
        if not (is_copied or is_cached):
            if known is not None:
                del self._blocks[key]
                self._journal.removed([known[0]])
            return
        if known is not None:
            hash = known[0]
        assert hash is not None
        if known != (hash, not is_cached):
            self._blocks[key] = hash, not is_cached
            self._journal.stored([hash], below=not is_cached)

    def take(self) -> list[CacheChange]:
        """Blocks that have appeared in the pool or on a tier, or left one, since the last call."""
        return self._journal.take()

    def contents(self) -> list[CacheChange]:
        """All blocks that are in the pool or on a tier, as changes since there was nothing."""
        return [
            CacheChange(True, [hash for hash, is_below in self._blocks.values() if is_below is below], below)
            for below in (False, True)
        ]
