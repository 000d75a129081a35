"""The sidecars of the pages of a KV pool, in host memory, addressed by page number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from common.sidecars import Rows, SidecarKind

_MASK_BYTES: Final = 8
"""Which kinds a record has, in the first byte; keeps the rows after it aligned."""


class Sidecars:
    """Rows of every kind for every page of a pool.

    Rows of a page are written in order, from its first token on. Once they are complete they do not change
    until the page is taken for other tokens, so another thread may read them while the page is owned.
    """

    def __init__(self, num_pages: int, page_size: int, kinds: Sequence[SidecarKind]) -> None:
        """Takes `num_pages` * `record_bytes` of host memory, most of it when it is first used."""
        self.kinds = tuple(kinds)
        self._page_size = page_size
        self._rows = [np.zeros((num_pages, page_size), kind.row) for kind in kinds]
        self._known = np.zeros((len(self.kinds), num_pages), np.int32)
        """Rows of each page that are known, from its first token on."""
        self._sizes = [page_size * kind.row.itemsize for kind in kinds]
        self.record_bytes = _MASK_BYTES + sum(self._sizes) if kinds else 0
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

    def num_complete(self, kind: SidecarKind, pages: Sequence[int]) -> int:
        """How many of these pages, from the first on, have all their rows. O(pages)."""
        complete = self._known[self.kinds.index(kind), list(pages)] == self._page_size
        return len(pages) if complete.all() else int(complete.argmin())

    def rows(self, kind: SidecarKind, pages: Sequence[int]) -> Rows:
        """A copy of the rows of complete pages, one after another."""
        rows: Rows = self._rows[self.kinds.index(kind)][list(pages)]
        return rows.reshape(len(pages) * self._page_size, *rows.shape[2:])

    def copy(self, source: int, target: int) -> None:
        """Give a page the rows of another page for the same tokens, if that has more of them."""
        for number, rows in enumerate(self._rows):
            if self._known[number, source] > self._known[number, target]:
                rows[target] = rows[source]
                self._known[number, target] = self._known[number, source]

    # ------------------------------------------------------------------------------ as bytes

    def read(self, page: int) -> bytes:
        """The record of a page: `record_bytes`, or none if no kind is complete. From any thread."""
        if page >= self._known.shape[1]:
            return b""  # of a recurrent state
        complete = [number for number, known in enumerate(self._known[:, page]) if known == self._page_size]
        if not complete:
            return b""
        mask = sum(1 << number for number in complete)
        parts = [mask.to_bytes(_MASK_BYTES, "little")]
        for number, size in enumerate(self._sizes):
            parts.append(self._rows[number][page].tobytes() if number in complete else bytes(size))
        return b"".join(parts)

    def put(self, page: int, record: bytes) -> None:
        """Give a page what `read` has returned, perhaps on another worker. From the thread that owns it.

        A record of another size, or of unknown kinds, is ignored.
        """
        mask = int.from_bytes(record[:_MASK_BYTES], "little")
        if len(record) != self.record_bytes or page >= self._known.shape[1] or mask >> len(self.kinds):
            return
        begin = _MASK_BYTES
        for number, (kind, size) in enumerate(zip(self.kinds, self._sizes, strict=True)):
            if mask >> number & 1:
                rows = np.frombuffer(record[begin : begin + size], kind.row)
                self._rows[number][page] = rows
                self._known[number, page] = self._page_size
            begin += size


NO_SIDECARS: Final = Sidecars(0, 1, ())
"""For pages that own nothing but KV."""
