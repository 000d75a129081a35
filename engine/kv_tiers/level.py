"""The pages on one level of memory below the pool: host memory, or a disk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from common.block_hash import BlockHash
from common.block_key import PageKey

__all__ = ["Copy", "Level"]

_FILLING: Final = None


@dataclass(slots=True)
class Copy:
    """The copy of a page on one level."""

    slot: int
    hash: BlockHash
    digest: int | None = _FILLING
    """None while it is being written."""
    readers: int = 0
    """Jobs that read it. Its slot is not reused meanwhile."""
    revoked: bool = False
    """Its content must not be used. It is removed when nothing reads or writes it any more."""


class Level:
    """`num_slots` copies at most. The least recently used one makes room, unless it is read or written.

    A copy is here (`in`, `get`) when it is complete and not revoked. All calls cost O(1) for each page.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.lost: list[tuple[PageKey, BlockHash]] = []
        """Pages that have left since the caller last emptied the list, for whatever reason."""
        self._copies: OrderedDict[PageKey, Copy] = OrderedDict()
        """From the least to the most recently used."""
        self._free = list(range(num_slots - 1, -1, -1))

    def __len__(self) -> int:
        """Slots in use."""
        return len(self._copies)

    def __contains__(self, key: PageKey) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[PageKey]:
        return (key for key in self._copies if key in self)

    def get(self, key: PageKey) -> Copy | None:
        copy = self._copies.get(key)
        return None if copy is None or copy.digest is _FILLING or copy.revoked else copy

    def is_filling(self, key: PageKey) -> bool:
        copy = self._copies.get(key)
        return copy is not None and copy.digest is _FILLING and not copy.revoked

    def begin(self, key: PageKey, hash: BlockHash) -> int | None:
        """A slot for a new copy, to be ended by `complete` or `abandon`; None: there is one, or no room."""
        if key in self._copies or not (self._free or self._make_room()):
            return None
        slot = self._free.pop()
        self._copies[key] = Copy(slot, hash)
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

    def read(self, key: PageKey) -> Copy:
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
        self.lost.append((key, copy.hash))
        if not copy.readers and copy.digest is not _FILLING:
            self._remove(key)

    def touch(self, keys: Iterable[PageKey]) -> None:
        """They were used now, the last of them most recently."""
        for key in keys:
            if key in self._copies:
                self._copies.move_to_end(key)

    def slots_in_use(self) -> list[int]:
        return [copy.slot for copy in self._copies.values()]

    def _make_room(self) -> bool:
        for key, copy in self._copies.items():
            if not copy.readers and copy.digest is not _FILLING:
                self._remove(key)
                return True
        return False

    def _remove(self, key: PageKey) -> None:
        copy = self._copies.pop(key)
        self._free.append(copy.slot)
        if not copy.revoked and copy.digest is not _FILLING:
            self.lost.append((key, copy.hash))
