"""Which rows of a step are those of images, and their positions. Plain numpy, from a plan alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from engine.core.batch.step_inputs import Ints
from engine.core.media import MediaItem
from engine.core.plan import Chunk, StepPlan
from engine.core.request import RequestId


class MediaPart(NamedTuple):
    """A part of one item in a step."""

    request: RequestId
    item: MediaItem
    expected: int
    """Rows that the item must have."""
    first: int
    """Row of the item that is the first of this part."""
    is_first: bool
    """Whether no earlier step has computed a part of the item for this request."""
    rows: Ints
    """[M]: rows of the step, which take rows first to first + M of the item."""


def media_parts(plan: StepPlan, placeholder: int) -> list[MediaPart]:
    """In the order of the rows. O(chunks), and O(tokens of items that the step computes a part of)."""
    return [part for row, chunk in _with_media(plan) for part in _parts_of(chunk, row, placeholder)]


def runs(rows: Ints) -> list[tuple[int, int]]:
    """First and end of each run of consecutive rows; `rows` ascend."""
    parts = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]


def _with_media(plan: StepPlan) -> Iterator[tuple[int, Chunk]]:
    """Chunks that begin before the last item of their request ends, with their first row in the step."""
    row = 0
    for chunk in plan.chunks:
        media = chunk.request.media
        if media and chunk.start < media[-1].end:
            yield row, chunk
        row += chunk.length


def _parts_of(chunk: Chunk, row: int, placeholder: int) -> Iterator[MediaPart]:
    for item in chunk.request.media:
        start, end = max(item.offset, chunk.start), min(item.end, chunk.end)
        if start >= end:
            continue
        of_item = np.asarray(chunk.request.tokens(item.offset, item.end)) == placeholder
        cut = start - item.offset
        rows = row + start - chunk.start + np.flatnonzero(of_item[cut : end - item.offset])
        if len(rows):
            first, count = np.count_nonzero(of_item[:cut]), np.count_nonzero(of_item)
            is_first = chunk.start in (item.offset, chunk.request.num_cached) or chunk.start < item.offset
            yield MediaPart(chunk.request.id, item, int(count), int(first), is_first, rows)
