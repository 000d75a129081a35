"""Block tables in CSR form (kv_indices, kv_indptr): the pages of several requests, one after another.

A padded table is as wide as the longest context: with one of 30,000 tokens among a hundred of 800, most of it
is padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.core.batch.step_inputs import Ints


@dataclass(frozen=True, slots=True)
class BlockTables:
    pages: Ints
    """[N]."""
    indptr: Ints
    """[R + 1]: request r has pages[indptr[r]:indptr[r + 1]]."""

    @classmethod
    def of(cls, lists: list[list[int]]) -> BlockTables:
        pages = np.array([page for pages in lists for page in pages], dtype=np.int64)
        return cls(pages, starts_of(np.array([len(pages) for pages in lists], dtype=np.int64)))

    @property
    def counts(self) -> Ints:
        """[R]."""
        return self.indptr[1:] - self.indptr[:-1]

    def part(self, begin: int, end: int) -> BlockTables:
        """The tables of requests [begin, end)."""
        indptr = self.indptr[begin : end + 1]
        return BlockTables(self.pages[indptr[0] : indptr[-1]], indptr - indptr[0])

    def padded(self, missing: int, page: int) -> BlockTables:
        """With `missing` more requests that have only `page`."""
        ends = self.indptr[-1] + np.arange(1, missing + 1)
        return BlockTables(
            np.concatenate([self.pages, np.full(missing, page)]), np.concatenate([self.indptr, ends])
        )

    def table(self, fill: int) -> Ints:
        """[R, longest]: the padded table; `fill` is the padding."""
        counts = self.counts
        table = np.full((len(counts), counts.max(initial=0)), fill, dtype=np.int64)
        table[np.arange(table.shape[1]) < counts[:, None]] = self.pages
        return table


def starts_of(lengths: Ints) -> Ints:
    """[R + 1]: exclusive prefix sum of `lengths` [R], with the total at the end."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    lengths.cumsum(out=starts[1:])
    return starts
