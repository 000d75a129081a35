"""The sidecars of the pages of a KV pool, in host memory, addressed by page number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from common.sidecars import Rows, SidecarKind

_COUNT: Final = np.dtype("<u4")
"""Known rows of a kind, of which a record begins with one for each kind."""
_ALIGNMENT: Final = 8
"""Bytes, of the rows in a record."""


class Sidecars:
    """Rows of every kind for every page of a pool.

    Rows of a page are written, or summed up, in order, from its first token on. Once they are complete they
    do not change until the page is taken for other tokens, so another thread may read them while the page is
    owned.
    """

    def __init__(self, num_pages: int, page_size: int, kinds: Sequence[SidecarKind]) -> None:
        """Takes `num_pages` * `record_bytes` of host memory, most of it when it is first used."""
        self.kinds = tuple(kinds)
        self._page_size = page_size
        self._counts = [1 if kind.of_page else page_size for kind in kinds]
        """Rows of a page."""
        counted = list(zip(self._counts, kinds, strict=True))
        self._rows = [np.zeros((num_pages, count), kind.row) for count, kind in counted]
        self._known = np.zeros((len(self.kinds), num_pages), np.int32)
        """Tokens of each page whose rows are known, or summed up, from its first token on."""
        self._sizes = [count * kind.row.itemsize for count, kind in counted]
        self._begin = -(-len(self.kinds) * _COUNT.itemsize // _ALIGNMENT) * _ALIGNMENT
        self.record_bytes = self._begin + sum(self._sizes)
        """Size of a page's record: the rows of all kinds."""

    def clear(self, pages: Iterable[int]) -> None:
        """These pages are taken for other tokens."""
        self._known[:, list(pages)] = 0

    def write(self, kind: SidecarKind, page: int, first: int, rows: Rows) -> None:
        """Write the rows of tokens from `first` on of a page. Ignored if rows before them are not known."""
        number = self.kinds.index(kind)
        known = int(self._known[number, page])
        if first <= known < first + len(rows):
            self._rows[number][page, known : first + len(rows)] = rows[known - first :]
            self._known[number, page] = first + len(rows)

    def add(self, kind: SidecarKind, page: int, first: int, tokens: int, row: Rows) -> None:
        """Add to the row of a page the sum over `tokens` of it from `first` on.

        Ignored unless they are the next ones.
        """
        number = self.kinds.index(kind)
        if self._known[number, page] == first:
            total = self._rows[number][page, 0]
            np.copyto(total, row) if first == 0 else np.add(total, row, out=total)
            self._known[number, page] = first + tokens

    def num_complete(self, kind: SidecarKind, pages: Sequence[int]) -> int:
        """How many of these pages, from the first on, have all their rows. O(pages)."""
        complete = self._known[self.kinds.index(kind), list(pages)] == self._page_size
        return len(pages) if complete.all() else int(complete.argmin())

    def rows(self, kind: SidecarKind, pages: Sequence[int]) -> Rows:
        """A copy of the rows of complete pages, one after another."""
        rows: Rows = self._rows[self.kinds.index(kind)][list(pages)]
        return rows.reshape(-1, *rows.shape[2:])

    def copy(self, source: int, target: int) -> None:
        """Give a page the rows of another page for the same tokens, if that has more of them."""
        for number, rows in enumerate(self._rows):
            if self._known[number, source] > self._known[number, target]:
                rows[target] = rows[source]
                self._known[number, target] = self._known[number, source]

    # ------------------------------------------------------------------------------ as bytes

    def read(self, page: int) -> bytes:
        """The record of a page: `record_bytes`, or none if no row is known. From any thread."""
        if page >= self._known.shape[1]:
            return b""  # of a recurrent state
        counts = self._known[:, page].astype(_COUNT)  # before the rows, which are written before they count
        if not counts.any():
            return b""
        rows = [self._rows[number][page].tobytes() for number in range(len(self.kinds))]
        return b"".join([counts.tobytes().ljust(self._begin, b"\0"), *rows])

    def put(self, page: int, record: bytes) -> None:
        """Give a page what `read` has returned, perhaps on another worker. From the thread that owns it.

        A record of another size, or with more rows than a page has, is ignored.
        """
        if not record or len(record) != self.record_bytes or page >= self._known.shape[1]:
            return
        counts = np.frombuffer(record, _COUNT, len(self.kinds))
        if counts.max() > self._page_size:
            return
        begin = self._begin
        for number, (kind, size) in enumerate(zip(self.kinds, self._sizes, strict=True)):
            self._rows[number][page] = np.frombuffer(record[begin : begin + size], kind.row)
            self._known[number, page] = counts[number]
            begin += size


NO_SIDECARS: Final = Sidecars(0, 1, ())
"""For pages that own nothing but KV."""
