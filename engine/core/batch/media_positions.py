"""Positions of prompts with images by M-RoPE: every worker derives them from the grids of the items.

The text before an image, its rows and the text after it are at positions that follow one another. Rows of an
image are at the frame, the row and the column of their patches, so that an image takes as many positions as
its longer side has.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from engine.core.batch.step_inputs import Ints
from engine.core.media import MediaItem
from engine.core.plan import StepPlan
from engine.core.request import Request


def positions_of(media: Sequence[MediaItem], merge: int, start: int, end: int) -> Ints:
    """Positions [3, end - start] of tokens [start, end): frames, rows and columns. `merge`: see
    `GridPositions`. O(tokens + items).
    """
    positions = np.tile(np.arange(start, end), (3, 1))
    shift = 0
    for item in media:
        if item.offset >= end:
            break
        frames, height, width = item.grid[0], item.grid[1] // merge, item.grid[2] // merge
        moved = max(height, width) - item.length
        positions[:, max(item.end - start, 0) :] += moved
        if item.end > start:
            of_item = np.indices((frames, height, width)).reshape(3, -1) + item.offset + shift
            first, last = max(item.offset, start), min(item.end, end)
            positions[:, first - start : last - start] = of_item[:, first - item.offset : last - item.offset]
        shift += moved
    return positions


def positions_of_step(plan: StepPlan, merge: int) -> Ints:
    """Positions [3, T] of a step's rows. O(rows)."""
    each = [positions_of(chunk.request.media, merge, chunk.start, chunk.end) for chunk in plan.chunks]
    return np.concatenate(each, axis=1)


def shift_at(media: Sequence[MediaItem], merge: int, token: int) -> int:
    """Position of a token of text, relative to its place in the request. O(items)."""
    before = [item for item in media if item.end <= token]
    return sum(max(item.grid[1], item.grid[2]) // merge - item.length for item in before)


class Shifts:
    """Positions of steps without rows of images, relative to the places of the rows."""

    def __init__(self, merge: int) -> None:
        self._merge = merge
        self._after_all: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        """Shifts of requests that decode."""

    def of(self, plan: StepPlan) -> Ints | None:
        """[T]; None: all are at their places. O(chunks)."""
        shifts = [self._of(request, start) if request.media else 0 for request, _, start, *_ in plan.chunks]
        return np.repeat(shifts, [chunk.length for chunk in plan.chunks]) if any(shifts) else None

    def _of(self, request: Request, start: int) -> int:
        if start < request.media[-1].end:
            return shift_at(request.media, self._merge, start)
        known = self._after_all.get(request)
        if known is None:
            known = self._after_all[request] = shift_at(request.media, self._merge, start)
        return known
