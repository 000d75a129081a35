"""Journal of the pages that the prefix cache stores and evicts, for routing by cached prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.block_hash import BlockHash

__all__ = ["CacheChange", "CacheJournal"]


@dataclass(frozen=True, slots=True)
class CacheChange:
    stored: bool
    """False: removed."""
    blocks: tuple[BlockHash, ...]
    """From shallow to deep."""


class CacheJournal:
    """Collects changes in order until they are taken."""

    def __init__(self) -> None:
        self._changes: list[CacheChange] = []

    def stored(self, blocks: Sequence[BlockHash]) -> None:
        self._changes.append(CacheChange(True, tuple(blocks)))

    def removed(self, blocks: Sequence[BlockHash]) -> None:
        self._changes.append(CacheChange(False, tuple(blocks)))

    def take(self) -> list[CacheChange]:
        """The changes since the last call."""
        changes, self._changes = self._changes, []
        return changes
