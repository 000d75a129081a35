"""Journal of the pages that the prefix cache stores and evicts, for routing by cached prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.block_hash import BlockHash


@dataclass(frozen=True, slots=True)
class CacheChange:
    stored: bool
    """False: removed."""
    blocks: Sequence[BlockHash]
    """From shallow to deep."""
    below: bool = False
    """Stored blocks: they are on a tier, not in the pool."""


class CacheJournal:
    """Collects changes in order until they are taken."""

    def __init__(self) -> None:
        self._changes: list[tuple[tuple[bool, bool], list[BlockHash]]] = []

    def stored(self, blocks: Sequence[BlockHash], *, below: bool = False) -> None:
        self._append((True, below), blocks)

    def removed(self, blocks: Sequence[BlockHash]) -> None:
        self._append((False, False), blocks)

    def take(self) -> list[CacheChange]:
        """The changes since the last call."""
        changes, self._changes = self._changes, []
        return [CacheChange(stored, blocks, below) for (stored, below), blocks in changes]

    def _append(self, kind: tuple[bool, bool], blocks: Sequence[BlockHash]) -> None:
        if self._changes and self._changes[-1][0] == kind:
            self._changes[-1][1].extend(blocks)
        else:
            self._changes.append((kind, list(blocks)))
