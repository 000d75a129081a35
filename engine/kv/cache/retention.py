"""Which cached blocks clients have asked to keep, until when, and within which budgets.

Plain Python, of block hashes: a retained block is evicted after all others, from the pool and from tiers, and
never withheld from a request that needs its memory. A sequence is retained by a tenant, under a session key.
A later turn takes the place of the turns that it continues, unless these are retained for longer.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from common.block_hash import BlockHash

_LISTINGS: Final = 16
"""Most blocks of a tenant's sequences together, in units of its budget. A block that sequences share counts
for each of them: the accounts take memory for each block of a sequence."""


@dataclass(frozen=True, slots=True, eq=False)
class Retained:
    """A sequence that is retained."""

    tenant: str
    key: str
    blocks: Sequence[BlockHash]
    until: float
    number: int
    """In order of their beginnings."""


class Retentions:
    """`retain`, `release` and `expire` cost O(blocks that they name), and O(log sequences) for each one."""

    def __init__(self, budget: int) -> None:
        """`budget`: distinct blocks that a tenant may retain, and a 16th of the blocks of all its sequences.
        Beyond it, sequences with the least time left end."""
        self.on_ended: list[Callable[[BlockHash], None]] = []
        """Called with each block that is no longer retained."""
        self.budget = budget
        self._holders: Counter[BlockHash] = Counter()
        """Sequences that retain a block."""
        self._sizes: Counter[str] = Counter()
        """Distinct blocks of each tenant."""
        self._owned: Counter[tuple[str, BlockHash]] = Counter()
        self._listed: Counter[str] = Counter()
        """Blocks of all sequences of each tenant."""
        self._sequences: dict[tuple[str, str], dict[BlockHash, Retained]] = {}
        """Retained sequences by tenant and key, then by last block."""
        self._by_end = _ByEnd()
        self._of_tenant: dict[str, _ByEnd] = {}
        self._numbers = count()

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._holders

    def __len__(self) -> int:
        """Blocks that are retained, whether they are still cached or not."""
        return len(self._holders)

    def size_of(self, tenant: str) -> int:
        """Blocks that a tenant retains."""
        return self._sizes[tenant]

    def sequences(self) -> list[Retained]:
        return [retained for sequences in self._sequences.values() for retained in sequences.values()]

    def held_until(self) -> dict[tuple[str, str], Counter[float]]:
        """Number of blocks retained until each time, by tenant and key; the longest retention of a block
        counts. O(blocks of all sequences).
        """
        ends: dict[tuple[str, str], dict[BlockHash, float]] = {}
        for retained in self.sequences():
            of_session = ends.setdefault((retained.tenant, retained.key), {})
            for block in retained.blocks:
                of_session[block] = max(retained.until, of_session.get(block, 0.0))
        return {name: Counter(of_session.values()) for name, of_session in ends.items()}

    def blocks_of(self, key: str) -> set[BlockHash]:
        """What sessions of this key retain, of all tenants."""
        return {block for retained in self.sequences() if retained.key == key for block in retained.blocks}

    def retain(self, tenant: str, key: str, blocks: Sequence[BlockHash], seconds: float, now: float) -> None:
        """Retain a sequence, or its beginning if the budget is smaller; with 0 seconds nothing changes."""
        blocks = blocks[: self.budget]
        if not blocks or seconds <= 0:
            return
        name = tenant, key
        retained = Retained(tenant, key, blocks, now + seconds, next(self._numbers))
        continued = self._sequences.get(name, {})
        if blocks[-1] in continued and continued[blocks[-1]].until > retained.until:
            return
        ends = [block for block in blocks if block in continued and continued[block].until <= retained.until]
        before = [continued.pop(block) for block in ends]
        self._sequences.setdefault(name, {})[blocks[-1]] = retained
        self._by_end.add(retained)
        self._of_tenant.setdefault(tenant, _ByEnd()).add(retained)
        self._holders.update(blocks)
        self._listed[tenant] += len(blocks)
        for block in blocks:
            self._owned[tenant, block] += 1
            self._sizes[tenant] += self._owned[tenant, block] == 1
        for shorter in before:
            self._let_go(shorter)
        self._keep_to_budget(retained)

    def release(self, tenant: str | None, key: str | None) -> int:
        """Give up what a session retains; None: any tenant, any key. Returns the number of sequences."""
        found = [
            retained
            for name, sequences in self._sequences.items()
            for retained in sequences.values()
            if tenant in (None, name[0]) and key in (None, name[1])
        ]
        for retained in found:
            self._give_up(retained)
        return len(found)

    def expire(self, now: float) -> None:
        """Give up the sequences whose time is over. O(1) while there is none."""
        while (first := self._by_end.first()) is not None and first.until <= now:
            self._give_up(first)

    # ------------------------------------------------------------------------------ inside

    def _keep_to_budget(self, newest: Retained) -> None:
        tenant, ends = newest.tenant, self._of_tenant[newest.tenant]
        while (self._sizes[tenant] > self.budget or self._listed[tenant] > _LISTINGS * self.budget) and (
            first := ends.first(besides=newest)
        ) is not None:
            self._give_up(first)

    def _give_up(self, retained: Retained) -> None:
        name = retained.tenant, retained.key
        sequences = self._sequences[name]
        del sequences[retained.blocks[-1]]
        if not sequences:
            del self._sequences[name]
        self._let_go(retained)

    def _let_go(self, retained: Retained) -> None:
        """Its blocks have one holder less."""
        tenant = retained.tenant
        self._by_end.discard(retained)
        self._of_tenant[tenant].discard(retained)
        self._listed[tenant] -= len(retained.blocks)
        for block in retained.blocks:
            if _decrement(self._holders, block):
                for told in self.on_ended:
                    told(block)
            if _decrement(self._owned, (tenant, block)):
                self._sizes[tenant] -= 1
        if not self._sizes[tenant]:
            del self._sizes[tenant], self._listed[tenant], self._of_tenant[tenant]


class _ByEnd:
    """Sequences, from the one with the least time left."""

    def __init__(self) -> None:
        self._live: set[Retained] = set()
        self._heap: list[tuple[float, int, Retained]] = []
        """Some have been discarded."""

    def add(self, retained: Retained) -> None:
        self._live.add(retained)
        heapq.heappush(self._heap, (retained.until, retained.number, retained))

    def discard(self, retained: Retained) -> None:
        self._live.discard(retained)
        if len(self._heap) > 2 * len(self._live) + 16:
            self._heap = [entry for entry in self._heap if entry[2] in self._live]
            heapq.heapify(self._heap)

    def first(self, besides: Retained | None = None) -> Retained | None:
        """The one with the least time left, other than `besides`."""
        while self._heap and self._heap[0][2] not in self._live:
            heapq.heappop(self._heap)
        if not self._heap or self._heap[0][2] is not besides:
            return self._heap[0][2] if self._heap else None
        mine = heapq.heappop(self._heap)
        second = self.first()
        heapq.heappush(self._heap, mine)
        return second


def _decrement(counter: Counter, key: object) -> bool:  # type: ignore[type-arg]
    """True: it was the last one."""
    if counter[key] > 1:
        counter[key] -= 1
        return False
    del counter[key]
    return True
