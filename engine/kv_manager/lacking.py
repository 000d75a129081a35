"""What a request lacks in the pool of a prefix that it could continue from. Pure.

A prefix can be continued where every group can serve it: all pages of full groups, those of windows behind
its end, and the state at its end, if the model has one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from common.kv_groups import NO_PAGE, kept_places
from engine.kv_cache.page_needs import PageNeeds


@dataclass(frozen=True, slots=True)
class Lacking:
    first: int
    """The first block that lacks a page or is not cached; `end` if only the state is lacking."""
    end: int
    """Blocks of the prefix."""
    places: Sequence[int]
    """In a request's block table, of the pages lacking."""
    state: bool
    """Whether the state at the end is lacking."""

    def part(self, count: int, stride: int) -> Lacking:
        """The first `count` pages, or fewer, so that no block is cut; without the state."""
        places = self.places
        while 0 < count < len(places) and places[count] // stride == places[count - 1] // stride:
            count -= 1
        end = self.end if count == len(places) else places[count] // stride
        return replace(self, end=end, places=places[:count], state=False)


def lacking(
    needs: PageNeeds,
    table: Sequence[int],
    checkpoints: Container[int] | None,
    usable: int,
    limit: int,
    has: Callable[[int, int], bool],
    num_state_parts: int,
) -> Lacking | None:
    """Of the longest prefix that pool and tiers can serve together; None: the pool alone serves as much.

    `table`: pages that the cache has, of which the first `usable` blocks can be continued. `checkpoints`:
    blocks behind which it has the state; None: the model has no state. `limit`: blocks of the longest prefix
    wanted. `has`: whether a tier has a part of a block.

    O(blocks of the prefix), or O(windows) behind what is cached.
    """
    stride, known = needs.stride, len(table) // needs.stride
    full = [number for number, group in enumerate(needs.groups) if group.window is None]
    state_parts = range(stride, stride + num_state_parts)

    def is_here(place: int) -> bool:
        return place < len(table) and table[place] != NO_PAGE

    def kept(end: int) -> Sequence[int]:
        position = end * needs.page_size
        firsts = (needs.first_block(w.group, position + 1) for w in needs.windowed)
        return kept_places(needs.groups, needs.page_size, position, range(min([known, *firsts]), end))

    end = known
    while end < limit and all(has(end, number) for number in full):
        end += 1
    while end > usable:
        state = checkpoints is not None and end not in checkpoints
        if state and not all(has(end - 1, part) for part in state_parts):
            end -= 1
            continue
        places = [place for place in kept(end) if not is_here(place)]
        holes = (place // stride for place in reversed(places) if not has(*divmod(place, stride)))
        hole = next(holes, None)
        if hole is None:
            first = min([known, end, *(place // stride for place in places[:1])])
            return Lacking(first, end, places, state)
        end = hole
    return None
