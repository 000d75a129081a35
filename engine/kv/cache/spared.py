"""Blocks that are evicted after all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from common.block_hash import BlockHash


class SparedBlocks(Protocol):
    on_ended: list[Callable[[BlockHash], None]]
    """Called with each block that is no longer spared."""

    def __contains__(self, block: BlockHash) -> bool: ...

    def __len__(self) -> int: ...


class _Nothing:
    def __init__(self) -> None:
        self.on_ended: list[Callable[[BlockHash], None]] = []

    def __contains__(self, block: BlockHash) -> bool:
        return False

    def __len__(self) -> int:
        return 0


NOTHING_SPARED: Final = _Nothing()
