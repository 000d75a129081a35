"""The pages on one level of memory below the pool: host memory, or a disk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from common.block_hash import BlockHash
from common.block_key import PageKey
from engine.kv.cache.spared import NOTHING_SPARED, SparedBlocks

_FILLING: Final = None


@dataclass(slots=True)
class LevelCopy:
    """The copy of a page on one level."""

    slot: int
    hash: BlockHash
    digest: int | None = _FILLING
    """None while it is being written."""
    readers: int = 0
    """Jobs that read it. Its slot is not reused meanwhile."""
    revoked: bool = False
    """Its content must not be used. It is removed when nothing reads or writes it any more."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing reads or writes it."""
        return not self.readers and self.digest is not _FILLING


class Level:
    """`num_slots` copies at most. The least recently used one makes room, unless it is read or written, and
    retained ones after all others.

    A copy is here (`in`, `get`) when it is complete and not revoked. All calls cost O(1) for each page.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.lost: list[tuple[PageKey, BlockHash, bool]] = []
        """Pages that have left since the caller last emptied the list; True: because they were revoked."""
        self._copies: dict[PageKey, LevelCopy] = {}
        self._order: OrderedDict[PageKey, None] = OrderedDict()
        """From the least to the most recently used, without those in `_spared`."""
        self._spared: OrderedDict[PageKey, None] = OrderedDict()
        """The same of copies that were retained when it was their turn to make room."""
        self._spared_of: dict[BlockHash, list[PageKey]] = {}
        """Spared pages, by their block."""
        self._to_spare: SparedBlocks = NOTHING_SPARED
        self._free = list(range(num_slots - 1, -1, -1))

    def __len__(self) -> int:
        """Slots in use."""
        return len(self._copies)

    def spare(self, blocks: SparedBlocks) -> None:
        """Blocks that make room after all others. To be called once."""
        self._to_spare = blocks
        blocks.on_ended.append(self._no_longer_spared)

    def __contains__(self, key: PageKey) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[PageKey]:
        return (key for key in self._copies if key in self)

    def held(self) -> list[PageKey]:
        """Copies that are here, and those that will be when they are written."""
        return [key for key, copy in self._copies.items() if not copy.revoked]

    def get(self, key: PageKey) -> LevelCopy | None:
        copy = self._copies.get(key)
        return None if copy is None or copy.digest is _FILLING or copy.revoked else copy

    def hash_of(self, key: PageKey) -> BlockHash:
        return self._copies[key].hash

    def is_filling(self, key: PageKey) -> bool:
        copy = self._copies.get(key)
        return copy is not None and copy.digest is _FILLING and not copy.revoked

    def begin(self, key: PageKey, hash: BlockHash) -> int | None:
        """A slot for a new copy, to be ended by `complete` or `abandon`; None: there is one, or no room."""
        if key in self._copies or not (self._free or self._make_room()):
            return None
        slot = self._free.pop()
        self._copies[key] = LevelCopy(slot, hash)
        self._order[key] = None
        return slot

    def complete(self, key: PageKey, digest: int) -> bool:
        """The copy is written. False: it was revoked meanwhile, and is gone."""
        copy = self._copies[key]
        copy.digest = digest
        if copy.revoked:
            self._remove(key)
        return not copy.revoked

    def abandon(self, key: PageKey) -> None:
        """The copy could not be written."""
        self._remove(key)

    def read(self, key: PageKey) -> LevelCopy:
        """The copy, which stays until `release`."""
        copy = self._copies[key]
        copy.readers += 1
        return copy

    def release(self, key: PageKey) -> None:
        copy = self._copies[key]
        copy.readers -= 1
        if copy.revoked and not copy.readers:
            self._remove(key)

    def revoke(self, key: PageKey) -> None:
        """The copy must not be used any more. No-op if there is none."""
        copy = self._copies.get(key)
        if copy is None or copy.revoked:
            return
        copy.revoked = True
        self.lost.append((key, copy.hash, True))
        if not copy.readers and copy.digest is not _FILLING:
            self._remove(key)

    def drop(self, key: PageKey) -> None:
        """Give up a copy that nothing reads, although it may be as it should. No-op if there is none."""
        copy = self._copies.get(key)
        if copy is not None and copy.is_idle and not copy.revoked:
            self._remove(key)

    def touch(self, keys: Iterable[PageKey]) -> None:
        """They were used now, the last of them most recently."""
        for key in keys:
            if key in self._copies:
                (self._order if key in self._order else self._spared).move_to_end(key)

    def slots_in_use(self) -> list[int]:
        return [copy.slot for copy in self._copies.values()]

    def _make_room(self) -> bool:
        retained: list[PageKey] = []
        found = None
        for key in self._order:
            copy = self._copies[key]
            if copy.hash in self._to_spare:
                retained.append(key)
            elif copy.is_idle:
                found = key
                break
        for key in retained:
            del self._order[key]
            self._spared[key] = None
            self._spared_of.setdefault(self._copies[key].hash, []).append(key)
        if found is None:
            found = next((key for key in self._spared if self._copies[key].is_idle), None)
        if found is not None:
            self._remove(found)
        return found is not None

    def _no_longer_spared(self, block: BlockHash) -> None:
        """Its copies come first: it was their turn. O(copies of the block)."""
        for key in self._spared_of.pop(block, ()):
            del self._spared[key]
            self._order[key] = None
            self._order.move_to_end(key, last=False)

    def _remove(self, key: PageKey) -> None:
        copy = self._copies.pop(key)
        if key in self._order:
            del self._order[key]
        else:
            del self._spared[key]
            self._spared_of[copy.hash].remove(key)
            if not self._spared_of[copy.hash]:
                del self._spared_of[copy.hash]
        self._free.append(copy.slot)
        if not copy.revoked and copy.digest is not _FILLING:
            self.lost.append((key, copy.hash, False))
