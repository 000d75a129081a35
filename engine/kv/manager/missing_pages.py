"""Computes which pages of a reusable prefix are missing from the pool. Pure.

A prefix can be continued where every group can serve it: all pages of full groups, those of windows after
its end, and the state at its end, if the model has one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from common.kv_groups import NO_PAGE, kept_places
from engine.kv.cache.page_needs import PageNeeds


@dataclass(frozen=True, slots=True)
class MissingPages:
    first: int
    """The first block that lacks a page or is not cached; `end` if only the state is lacking."""
    end: int
    """Blocks of the prefix."""
    places: Sequence[int]
    """In a request's block table, of the pages lacking."""
    state: bool
    """Whether the state at the end is lacking."""

    def part(self, count: int, stride: int) -> MissingPages:
        """The first `count` pages, or fewer, so that no block is cut; without the state."""
        places = self.places
        while 0 < count < len(places) and places[count] // stride == places[count - 1] // stride:
            count -= 1
        end = self.end if count == len(places) else places[count] // stride
        return replace(self, end=end, places=places[:count], state=False)


def missing_pages(
    needs: PageNeeds,
    table: Sequence[int],
    checkpoints: Container[int] | None,
    usable: int,
    limit: int,
    has: Callable[[int, int], bool],
    num_state_parts: int,
) -> MissingPages | None:
    """Missing pages of the longest prefix that pool and tiers can serve together; None: the pool alone serves
    as much.

    `table`: pages that the cache has, of which the first `usable` blocks can be continued. `checkpoints`:
    blocks after which it has the state; None: the model has no state. `limit`: blocks of the longest prefix
    wanted. `has`: whether a tier has a part of a block.

    O(blocks of the prefix): `has` is asked about each part of a block once at most.
    """
    stride, known = needs.stride, len(table) // needs.stride
    full = [number for number, group in enumerate(needs.groups) if group.window is None]
    state_parts = range(stride, stride + num_state_parts)

    def is_here(place: int) -> bool:
        return place < len(table) and table[place] != NO_PAGE

    def firsts(end: int) -> list[tuple[int, int]]:
        """The first block that each window reaches from block `end`, and its group."""
        position = end * needs.page_size + 1
        return [(needs.first_block(w.group, position), w.number) for w in needs.windowed]

    def hole(end: int) -> int | None:
        """The last block in a window before `end` that neither the cache nor a tier has."""
        reached = firsts(end)
        for block in range(end - 1, min(reached)[0] - 1 if reached else end, -1):
            for first, number in reached:
                if first <= block and not is_here(block * stride + number) and not has(block, number):
                    return block
        return None

    end = known
    while end < limit and all(has(end, number) for number in full):
        end += 1
    while end > usable:
        state = checkpoints is not None and end not in checkpoints
        if state and not all(has(end - 1, part) for part in state_parts):
            end -= 1
        elif (missing := hole(end)) is not None:
            end = missing
        else:
            blocks = range(min([known, *(first for first, _ in firsts(end))]), end)
            kept = kept_places(needs.groups, needs.page_size, end * needs.page_size, blocks)
            places = [place for place in kept if not is_here(place)]
            first = min([known, end, *(place // stride for place in places[:1])])
            return MissingPages(first, end, places, state)
    return None
