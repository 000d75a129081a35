"""The router's copy of one worker's prefix cache, from the worker's reports and the prompts sent to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from common.block_hash import BlockHash
from rpc.baton.v1 import worker_pb2


class CachedPrefixes:
    """The pages of a worker's radix cache, by hash: a page is there only if all pages before it are.

    A session starts with the whole content of the cache, and changes follow in order, so the copy is that of
    the latest report. A wrong answer only costs time, since the worker compares the tokens itself.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._stored: set[BlockHash] = set()
        self._below: set[BlockHash] = set()
        """Stored pages that are on a tier and not in the pool."""
        self._expected: Counter[BlockHash] = Counter()
        """Pages of unfinished requests: concurrent requests with a common prefix go to the worker that
        already computes it."""

    def __len__(self) -> int:
        """Pages stored."""
        return len(self._stored)

    @property
    def blocks(self) -> Collection[BlockHash]:
        """Pages stored, in no order."""
        return self._stored

    def changed(self, change: worker_pb2.CacheChange) -> None:
        """The worker has reported a change."""
        if change.stored:
            self.stored(change.blocks, below=change.below)
        else:
            self.removed(change.blocks)

    def stored(self, blocks: Sequence[BlockHash], *, below: bool = False) -> None:
        """`below`: on a tier, and not in the pool."""
        self._stored.update(blocks)
        (self._below.update if below else self._below.difference_update)(blocks)

    def removed(self, blocks: Sequence[BlockHash]) -> None:
        self._stored.difference_update(blocks)
        self._below.difference_update(blocks)

    def expect(self, blocks: Iterable[BlockHash]) -> None:
        """A prompt of these blocks is sent to the worker. Must be followed by one `forget`."""
        self._expected.update(blocks)

    def forget(self, blocks: Iterable[BlockHash]) -> None:
        """The request of an expected prompt has ended; the pages that stay cached were reported."""
        expected = self._expected
        for block in blocks:
            if expected[block] == 1:
                del expected[block]
            else:
                expected[block] -= 1

    def matching_tokens(self, blocks: Sequence[BlockHash]) -> int:
        """Tokens of the longest prefix that is cached, or will be. O(log blocks)."""
        return self._longest(blocks, self._has)

    def stored_tokens(self, blocks: Sequence[BlockHash]) -> int:
        """Tokens of the longest prefix that is cached now. O(log blocks)."""
        return self._longest(blocks, self._stored.__contains__)

    def tier_tokens(self, blocks: Sequence[BlockHash]) -> int:
        """Number of `stored_tokens` that are on a tier and not in the pool. O(log blocks). The pool gives up
        the end of a sequence first.
        """
        if not self._below:
            return 0
        in_pool = self._longest(blocks, lambda block: block in self._stored and block not in self._below)
        return self.stored_tokens(blocks) - in_pool

    def _longest(self, blocks: Sequence[BlockHash], has: Callable[[BlockHash], bool]) -> int:
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if has(blocks[middle - 1]):
                low = middle
            else:
                high = middle - 1
        return low * self.page_size

    def _has(self, block: BlockHash) -> bool:
        return block in self._stored or block in self._expected
