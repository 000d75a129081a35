"""What adapters add to the products of a layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.adapters.peft_folder import LowRankPair
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.linear.panels import must_be_uniform, uniform_panels

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


Product: TypeAlias = Callable[[Tensor], Tensor]


class CpuAddition(SlottedAddition):
    """Multiplies the rows of one adapter after those of the other, in the ranks that they have."""

    def __init__(self, place: AdaptedLayer) -> None:
        super().__init__(place)
        self._uniform = must_be_uniform()
        self._slots: dict[int, list[tuple[range, Product, Product]]] = {}

    def fill(self, slot: int, pieces: Pieces) -> None:
        self._slots[slot] = [
            (self.place.pieces[number], *self._products(pair)) for number, pair in pieces.items()
        ]

    def _products(self, pair: LowRankPair) -> tuple[Product, Product]:
        """With the two halves of a pair."""
        if not self._uniform:
            return (lambda x: x @ pair.a.t()), (lambda x: x @ pair.b.t())
        odd = pair.rank % 2  # the kernel multiplies pairs of bfloat16
        a = uniform_panels(functional.pad(pair.a, (0, 0, 0, odd)))
        b = uniform_panels(functional.pad(pair.b, (0, odd)))
        return partial(a.product, bias=None), partial(b.product, bias=None)

    def add(self, multiply: Callable[[], Tensor], x: Tensor) -> Tensor:
        product = multiply()
        for slot, rows in self.place.rows.groups:
            mine = x[rows]
            for piece, shrink, expand in self._slots[slot]:
                product[:, piece.start : piece.stop].index_add_(0, rows, expand(shrink(mine)))
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
