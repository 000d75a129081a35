"""How the contexts of a batch of decodes are split over thread blocks, as arrays. Numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from engine.core.batch.block_tables import BlockTables
from engine.core.batch.step_inputs import Ints

A = TypeVar("A")

_ALIGNMENT: Final = 4
"""Integers: a kernel is compiled once for pointers that are 16-byte aligned, and again for others."""


@dataclass(frozen=True, slots=True)
class Decodes:
    """R requests with one query each, on the host."""

    context_lens: Ints
    """[R]"""
    block_tables: BlockTables

    def padded(self, missing: int, page: int) -> Decodes:
        """With `missing` more requests of one token each, on `page`."""
        if not missing:
            return self
        lens = np.concatenate([self.context_lens, np.ones(missing, dtype=np.int64)])
        return Decodes(lens, self.block_tables.padded(missing, page))


class DecodePlan(NamedTuple, Generic[A]):
    """P parts of R contexts: arrays on the host, int32 tensors on the device, or their sizes or offsets."""

    page_indptr: A
    """[R + 1]: where a request's pages begin in `pages`."""
    last_page_lens: A
    """[R]: tokens in the last page of each request."""
    first_parts: A
    """[R + 1]: where a request's parts begin if all were in the order of requests."""
    owners: A
    """[P]: the request of each part, in the order in which to launch them; -1: none."""
    indices: A
    """[P]: which part of its request."""
    part_tokens: A
    """[1]: tokens of each part but a request's last."""
    pages: A
    """[number of pages]."""


class PlanLayout:
    """Offsets of a plan's fields in one array of int32, for R requests and a grid of P parts."""

    def __init__(self, requests: int, parts: int) -> None:
        self.requests, self.parts = requests, parts
        self.sizes = DecodePlan(requests + 1, requests, requests + 1, parts, parts, 1, 0)
        """Without the pages, which come last."""
        aligned = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in self.sizes]
        self.offsets = DecodePlan(*accumulate(aligned[:-1], initial=0))

    @property
    def fixed_ints(self) -> int:
        """Integers before the pages."""
        return self.offsets.pages

    def ints(self, plan: DecodePlan[Ints]) -> int:
        """Integers that `pack` writes."""
        return self.fixed_ints + len(plan.pages)

    def pack(self, plan: DecodePlan[Ints], into: npt.NDArray[np.int32]) -> None:
        """Leaves what lies between the fields as it is. Raises ValueError if `plan` has more parts than the
        grid."""
        parts, owners = len(plan.owners), self.offsets.owners
        if parts > self.parts:
            raise ValueError(f"{parts} parts do not fit a grid of {self.parts}")
        into[owners + parts : owners + self.parts] = -1
        for offset, values in zip(self.offsets, plan, strict=True):
            into[offset : offset + len(values)] = values
