"""Divides a step's attention among thread blocks, without effect on results. Needs only numpy.

A tile is some consecutive tokens of a request, and the heads that share their key head. Few tiles are divided
into items of some splits of the context each, so that all multiprocessors are busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.core.batch.block_tables import starts_of
from engine.core.batch.step_inputs import Ints


@dataclass(frozen=True, slots=True)
class Queries:
    """Tokens of R requests, each of consecutive positions."""

    rows: Ints
    """[R]: the row of the first token."""
    lengths: Ints
    """[R]: tokens."""
    positions: Ints
    """[R]: the position of the first token."""

    def tiles(self, size: int) -> Queries:
        """The same as requests of at most `size` tokens."""
        counts = -(-self.lengths // size)
        owners = self.owners(size)
        done = (np.arange(len(owners)) - starts_of(counts)[owners]) * size
        lengths = np.minimum(self.lengths[owners] - done, size)
        return Queries(self.rows[owners] + done, lengths, self.positions[owners] + done)

    def owners(self, size: int) -> Ints:
        """The request of each of `tiles`."""
        return np.repeat(np.arange(len(self.lengths)), -(-self.lengths // size))


@dataclass(frozen=True, slots=True)
class Contexts:
    """Where the keys of R requests are."""

    first_pages: Ints
    """[R]: index in the table of the request's first page."""
    offsets: Ints
    """[R]: the position of its first key there."""


def plan_items(
    queries: Queries,
    contexts: Contexts,
    *,
    tile_tokens: int,
    split: int,
    window: int | None,
    most_parts: int | None,
) -> Ints:
    """Items [P, ITEM] of `uniform_attention.attend`, those that take longest first.

    `most_parts`: divide tiles into about as many items, at most as many more as there are tiles; None: do not
    divide them.
    """
    tiles = queries.tiles(tile_tokens)
    owners = queries.owners(tile_tokens)
    begins = np.zeros_like(tiles.positions)
    if window is not None:
        begins = np.maximum(tiles.positions + 1 - window, 0)
    firsts, ends = begins // split, (tiles.positions + tiles.lengths - 1) // split + 1
    counts = ends - firsts
    each = int(counts.max(initial=1))
    if most_parts is not None:
        each = max(1, -(-int(counts.sum()) // most_parts))
    parts = -(-counts // each)
    tile = np.repeat(np.arange(len(counts)), parts)
    done = (np.arange(len(tile)) - starts_of(parts)[tile]) * each
    begin = firsts[tile] + done
    end = np.minimum(begin + each, ends[tile])
    slots = starts_of(counts * tiles.lengths)[tile] + done * tiles.lengths[tile]
    owner = owners[tile]
    columns = (
        tiles.rows[tile],
        tiles.lengths[tile],
        tiles.positions[tile],
        contexts.first_pages[owner],
        contexts.offsets[owner],
        begin,
        end,
        slots,
    )
    last = np.minimum(end * split, tiles.positions[tile] + tiles.lengths[tile])
    work = last - np.maximum(begin * split, begins[tile])
    items: Ints = np.stack(columns, axis=1)[np.argsort(-work, kind="stable")]
    return items


def num_slots(queries: Queries, *, split: int, window: int | None) -> int:
    """Pairs of a token and a split at most, if tiles are divided."""
    last = queries.positions + queries.lengths - 1
    first = 0 * last if window is None else np.maximum(queries.positions + 1 - window, 0)
    return int((queries.lengths * (last // split + 1 - first // split)).sum())
