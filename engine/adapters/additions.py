"""What adapters add to the products of a layer."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from engine.adapters.peft_folder import LowRankPair
from engine.kernels.cpu.library import SlotPair, SlotPairs, cpu_kernels
from engine.modeling.layers.linear.linear_layer import Linear

Pieces: TypeAlias = Mapping[int, LowRankPair]
"""Pairs of an adapter by the number of the projection that they change, of those that a layer merges."""


class AdapterRows:
    """The adapter of each row of the next forward pass."""

    def __init__(self, device: torch.device) -> None:
        self.slots: Tensor | None = None
        """[T] int64, on the device; -1: none. None: no row has one."""
        self.side_stream: torch.cuda.Stream | None = None
        """On a GPU: for products that are computed beside those of the layers."""
        if device.type == "cuda":
            self.side_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.groups: list[tuple[int, Tensor]] = []
        """On a CPU: the slots in use, with the rows of each."""

    def use(self, slots: Tensor | None) -> None:
        self.slots = slots
        if slots is not None and slots.device.type == "cpu":
            used = sorted({*slots.tolist()} - {-1})
            self.groups = [(slot, (slots == slot).nonzero().flatten()) for slot in used]


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """A layer that adapters change."""

    rows: AdapterRows
    layer: Linear
    pieces: tuple[range, ...]
    """Output features of the projections that it merges."""


class SlottedAddition(ABC):
    """Adapters of a layer in numbered slots. An `Addition`."""

    def __init__(self, place: AdaptedLayer) -> None:
        self.place = place

    @abstractmethod
    def fill(self, slot: int, pieces: Pieces) -> None:
        """Replace what is in a slot. Enqueued on the device."""

    @property
    def is_idle(self) -> bool:
        return self.place.rows.slots is None

    @abstractmethod
    def add(self, multiply: Callable[[], Tensor], x: Tensor) -> Tensor:
        """See `Addition`."""


class CpuAddition(SlottedAddition):
    """A compiled kernel multiplies each row by itself; without one, torch those of one adapter at a time."""

    def __init__(self, place: AdaptedLayer, slots: int, dtype: torch.dtype) -> None:
        super().__init__(place)
        self._kernels = cpu_kernels(dtype)
        self._slots: dict[int, list[tuple[range, Tensor, Tensor]]] = {}
        """Matrices [rank, in] and [rank, out] of projections."""
        self._table = (SlotPairs * slots)()
        self._entries: dict[int, ctypes.Array[SlotPair]] = {}
        """The table's pairs, by slots."""

    def fill(self, slot: int, pieces: Pieces) -> None:
        pairs = self._slots[slot] = [
            (self.place.pieces[number], pair.a.contiguous(), pair.b.t().contiguous())
            for number, pair in pieces.items()
        ]
        entries = self._entries[slot] = (SlotPair * len(pairs))()
        for entry, (piece, a, b) in zip(entries, pairs, strict=True):
            entry.rank, entry.first, entry.columns = len(a), piece.start, len(piece)
            entry.a, entry.b = a.data_ptr(), b.data_ptr()
        self._table[slot] = SlotPairs(len(pairs), ctypes.addressof(entries))

    def add(self, multiply: Callable[[], Tensor], x: Tensor) -> Tensor:
        product, rows = multiply(), self.place.rows
        if self._kernels is not None:
            assert rows.slots is not None
            assert product.dtype == x.dtype
            self._kernels.add_low_rank(x.contiguous(), rows.slots, self._table, product)
            return product
        for slot, mine in rows.groups:
            for piece, a, b in self._slots[slot]:
                product[:, piece.start : piece.stop].index_add_(0, mine, x[mine] @ a.t() @ b)
        return product


class GpuAddition(SlottedAddition):
    """All adapters at addresses that captured graphs read, each padded to the largest rank."""

    def __init__(self, place: AdaptedLayer, slots: int, rank: int, like: Tensor) -> None:
        """`like`: has the dtype and the device."""
        super().__init__(place)
        layer, count = place.layer, len(place.pieces)
        self._rank = rank
        self._a = torch.zeros(slots, count, rank, layer.in_features, dtype=like.dtype, device=like.device)
        self._b = torch.zeros(slots, layer.out_features, rank, dtype=like.dtype, device=like.device)

    def fill(self, slot: int, pieces: Pieces) -> None:
        a, b = self._a[slot], self._b[slot]
        a.zero_()
        b.zero_()
        for number, pair in pieces.items():
            piece = self.place.pieces[number]
            a[number, : pair.rank].copy_(pair.a, non_blocking=True)
            b[piece.start : piece.stop, : pair.rank].copy_(pair.b, non_blocking=True)

    def add(self, multiply: Callable[[], Tensor], x: Tensor) -> Tensor:
        # Triton ships only with torch's CUDA builds.
        from engine.kernels.matmul.adapters import add_low_rank
        from engine.kernels.matmul.adapters_few_rows import expand, shrink, suits

        slots, pieces, side = self.place.rows.slots, self.place.pieces, self.place.rows.side_stream
        assert slots is not None
        assert side is not None
        if not suits(x):
            product = multiply()
            add_low_rank(product, x, self._a, self._b, slots, pieces)
            return product
        # The layer's product reads its weights, and leaves most of a GPU's arithmetic to others.
        here = torch.cuda.current_stream(x.device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            inner = shrink(x, self._a, slots)
        product = multiply()
        here.wait_stream(side)
        expand(product, inner, self._b, slots, pieces)
        return product
