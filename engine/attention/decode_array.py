"""The array of integers from which the decode kernel reads who computes what. Numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.attention.decode_plan import DecodePlan
from engine.batch.block_tables import BlockTables
from engine.batch.step_inputs import Ints

__all__ = ["Decodes", "PlanFields"]

_ALIGNMENT: Final = 4
"""Integers: a kernel is compiled once for pointers that are 16-byte aligned, and again for others."""


@dataclass(frozen=True, slots=True)
class Decodes:
    """R requests with one query each, on the host."""

    context_lens: Ints
    """[R]"""
    block_tables: BlockTables

    def padded(self, missing: int, page: int) -> Decodes:
        """With so many more requests of one token, on this page."""
        lens = np.concatenate([self.context_lens, np.ones(missing, dtype=np.int64)])
        return Decodes(lens, self.block_tables.padded(missing, page))


class PlanFields:
    """Where things lie in the array, for R requests and a grid of P parts, in integers. Pages come last.

    They are those of `PlanTensors`.
    """

    def __init__(self, requests: int, parts: int) -> None:
        self.requests, self.parts = requests, parts
        self.end = 0
        self.page_indptr = self._field(requests + 1)
        self.last_page_lens = self._field(requests)
        self.first_parts = self._field(requests + 1)
        self.owners = self._field(parts)
        self.indices = self._field(parts)
        self.part_tokens = self._field(1)

    def _field(self, size: int) -> int:
        begin = self.end
        self.end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return begin

    def pack(self, decodes: Decodes, cut: DecodePlan, page_size: int) -> npt.NDArray[np.int32]:
        lists = decodes.block_tables
        if len(cut.owners) > self.parts:
            raise ValueError(f"{len(cut.owners)} parts do not fit a grid of {self.parts}")
        packed = np.zeros(self.end + len(lists.pages), dtype=np.int32)

        def put(field: int, values: Ints) -> None:
            packed[field : field + len(values)] = values

        put(self.page_indptr, lists.indptr)
        put(self.last_page_lens, decodes.context_lens - (lists.counts - 1) * page_size)
        put(self.first_parts, cut.first_parts)
        packed[self.owners : self.owners + self.parts] = -1
        put(self.owners, cut.owners)
        put(self.indices, cut.indices)
        packed[self.part_tokens] = cut.part_pages * page_size
        put(self.end, lists.pages)
        return packed
