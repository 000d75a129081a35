"""Which prefixes the workers of this cluster cache together, with their tokens, as a sequence of events.

Workers report pages by hash, without their tokens, which subscribers need for hashes of their own. The router
knows the tokens of the requests that it served, so a block is published when some worker has it and an ended
request of this router had its tokens. Pages of other routers' requests are published when a request of this
router has the same prefix.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from common.block_hash import BlockHash, block_hashes

_UNSTORED_BLOCKS: Final = 100_000
"""Blocks of known tokens that no worker has; of about 300 bytes each with pages of 16 tokens."""


@dataclass(slots=True)
class BlocksStored:
    """Blocks that follow each other, which a worker has and none had before."""

    parent: BlockHash | None
    """The block before the first one; None: the first one begins a prompt."""
    blocks: list[BlockHash] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Tokens of all blocks."""


@dataclass(slots=True)
class BlocksRemoved:
    """Blocks that no worker has any more."""

    blocks: list[BlockHash]


BlockEvent: TypeAlias = BlocksStored | BlocksRemoved


@dataclass(frozen=True, slots=True)
class _Content:
    parent: BlockHash | None
    tokens: Sequence[int]


class CachedBlocks:
    """Every method costs O(blocks or tokens named); `lost` costs O(blocks of the worker)."""

    def __init__(self, page_size: int, unstored: int = _UNSTORED_BLOCKS) -> None:
        self.page_size: Final = page_size
        self._limit: Final = unstored
        self._of_worker: dict[str, set[BlockHash]] = {}
        self._holders: Counter[BlockHash] = Counter()
        """Number of workers that have a block."""
        self._published: set[BlockHash] = set()
        self._unstored: OrderedDict[BlockHash, _Content] = OrderedDict()
        """Known blocks that no worker has, the least recently named first."""
        self._events: list[BlockEvent] = []

    def take(self) -> list[BlockEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def learn(self, tokens: Sequence[int]) -> None:
        """A request had these tokens: prompt and answer."""
        size, parent = self.page_size, None
        for number, block in enumerate(block_hashes(tokens, size)):
            if block not in self._published:
                content = _Content(parent, tokens[number * size : (number + 1) * size])
                if block in self._holders:
                    self._publish(block, content)
                else:
                    self._keep(block, content)
            parent = block

    def stored(self, worker: str, blocks: Iterable[BlockHash]) -> None:
        known = self._of_worker.setdefault(worker, set())
        for block in blocks:
            if block not in known:
                known.add(block)
                self._holders[block] += 1
                if content := self._unstored.pop(block, None):
                    self._publish(block, content)

    def removed(self, worker: str, blocks: Iterable[BlockHash]) -> None:
        known = self._of_worker.get(worker, set())
        gone = []
        for block in blocks:
            if block in known:
                known.remove(block)
                self._holders[block] -= 1
                if not self._holders[block]:
                    del self._holders[block]
                    gone.append(block)
        if published := [block for block in gone if block in self._published]:
            self._published.difference_update(published)
            self._events.append(BlocksRemoved(published))

    def lost(self, worker: str) -> None:
        """The worker has ended, or the connection to it, which will report anew."""
        self.removed(worker, list(self._of_worker.get(worker, ())))
        self._of_worker.pop(worker, None)

    def _keep(self, block: BlockHash, content: _Content) -> None:
        self._unstored[block] = content
        self._unstored.move_to_end(block)
        if len(self._unstored) > self._limit:
            self._unstored.popitem(last=False)

    def _publish(self, block: BlockHash, content: _Content) -> None:
        self._published.add(block)
        last = self._events[-1] if self._events else None
        if not isinstance(last, BlocksStored) or last.blocks[-1] != content.parent:
            last = BlocksStored(content.parent)
            self._events.append(last)
        last.blocks.append(block)
        last.tokens += content.tokens
