"""Integers whose groups are not of neighbouring input features: GPTQ's act-order (`desc_act`).

GPTQ quantizes input features in the order of their activations; the checkpoint has the group of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from engine.model_config.quantization import Packing
from engine.modeling.layers.formats.integers import IntegerGroups
from engine.modeling.layers.formats.quantized import PackedMethod, taken
from engine.modeling.layers.linear.codes import Codes
from engine.modeling.layers.linear.linear_layer import GroupedProduct, Linear, LinearMethod, Slot

_NAMES: Final = {Packing.GPTQ: "g_idx", Packing.COMPRESSED: "weight_g_idx"}
_SORTED: Final = "sorted"
"""Key of the permutation that makes groups neighbours, beside the stored parameters."""


@dataclass(frozen=True, slots=True)
class ActOrder(IntegerGroups):
    """Where a device multiplies packed values, input features are sorted by group before each product.

    Weights are dequantized where groups cannot be sorted: of a part of the input features, which has more
    features of one group than of another, and of experts, whose tokens would have an order for each.
    """

    NAME: ClassVar[str] = "act-order"
    shares: int = 1
    """Ranks that the input features are divided among."""

    def _groups(self, in_features: int) -> int:
        return super(ActOrder, self)._groups(in_features * self.shares)

    @property
    def _span(self) -> int | None:
        return None

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        super(ActOrder, self).create(layer, in_features, out_features, stack=stack)
        order = torch.full((*stack, 1, in_features), -1, dtype=torch.int32)
        layer.order = nn.Parameter(order, requires_grad=False)

    def slots(self, layer: nn.Module) -> list[Slot]:
        order = Slot(_NAMES[self.packing], layer.get_parameter("order"), (None, 1))
        return [*super(ActOrder, self).slots(layer), order]

    def pack(self, layer: Linear) -> LinearMethod:
        stored = taken(layer)
        order = _sorted(self._of_features(stored), stored["scale"].shape[-1])
        packed = None if order is None else self.packed({**stored, _SORTED: order})
        if order is None or packed is None:
            return self.pack_dense(layer, stored)
        unordered = torch.equal(order, torch.arange(len(order), device=order.device))
        return packed if unordered else Sorted(order, packed)

    def grouped_on_device(self, stored: Mapping[str, Tensor]) -> GroupedProduct | None:
        return None

    def values(self, stored: Mapping[str, Tensor]) -> Tensor:
        values = super(ActOrder, self).values(stored)
        return values.index_select(-1, stored[_SORTED]) if _SORTED in stored else values

    def coded(self, stored: Mapping[str, Tensor]) -> Codes | None:
        return super(ActOrder, self).coded(stored) if _SORTED in stored else None

    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        values, zeros, scale = self.values(stored), self.zeros(stored), stored["scale"]
        group = self._of_features(stored).unsqueeze(-2).expand(values.shape)
        return ((values.float() - zeros.gather(-1, group)) * scale.gather(-1, group)).to(self.dtype)

    def _of_features(self, stored: Mapping[str, Tensor]) -> Tensor:
        """The group of each input feature: [..., in] int64."""
        order = stored["order"].squeeze(-2).long()
        assert self.group is not None, "features of one group have no order"
        unordered = torch.arange(order.shape[-1], device=order.device) // self.group
        return torch.where(order < 0, unordered, order)  # dummy weights have none


def _sorted(group: Tensor, count: int) -> Tensor | None:
    """Input features ordered by their `group` [in]; None if not all of `count` groups have as many."""
    sizes = torch.bincount(group, minlength=count)
    return None if bool((sizes != sizes[0]).any()) else group.argsort(stable=True)


@dataclass(frozen=True, slots=True)
class Sorted(PackedMethod):
    """A method for weights whose input features are in another order."""

    order: Tensor
    """[in]: the input feature at each place."""
    method: LinearMethod

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.method.apply(layer, x.index_select(1, self.order), bias)
