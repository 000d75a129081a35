"""Linear methods whose weights are stored in fewer bits than activations."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from engine.modeling.layers.linear.codes import CodePanels, Codes, faster_code_panels
from engine.modeling.layers.linear.linear_layer import (
    PLAIN,
    GroupedProduct,
    Linear,
    LinearMethod,
    MatrixPerExpert,
    Slot,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuantizedWeight(LinearMethod):
    """A format as a checkpoint stores it, until a layer is packed.

    A device that has kernels for the format, on CPUs faster ones than for dense weights, keeps the weights in
    it; elsewhere they are dequantized.
    """

    dtype: torch.dtype
    """Dtype of activations."""
    NAME: ClassVar[str]

    @abstractmethod
    def dense(self, stored: Mapping[str, Tensor]) -> Tensor:
        """The weights [..., out, in] that the parameters of a layer stand for, in `dtype`."""

    def on_device(self, stored: Mapping[str, Tensor]) -> LinearMethod | None:
        """The method that multiplies a layer's parameters as they are; None: no GPU kernels."""
        return None

    def grouped_on_device(self, stored: Mapping[str, Tensor]) -> GroupedProduct | None:
        """The same for a stack."""
        return None

    def coded(self, stored: Mapping[str, Tensor]) -> Codes | None:
        """The weights for CPU kernels; None: there are no kernels for the format."""
        return None

    def pack(self, layer: Linear) -> LinearMethod:
        stored = taken(layer)
        return self.packed(stored) or self.pack_dense(layer, stored)

    def packed(self, stored: Mapping[str, Tensor]) -> LinearMethod | None:
        """The method that multiplies weights in their format; None: dense ones are faster."""
        method = self.on_device(stored)
        if method is None and (panels := self._panels(stored)):
            return CodesOnCpu(panels[0])
        return method

    def pack_dense(self, layer: Linear, stored: Mapping[str, Tensor]) -> LinearMethod:
        self._set_dense(layer, stored)
        return PLAIN.pack(layer)

    def dequantize(self, layer: nn.Module) -> None:
        """Replace the parameters of a layer by its `weight`."""
        layer.weight = nn.Parameter(self.dense(taken(layer)), requires_grad=False)

    def _set_dense(self, layer: nn.Module, stored: Mapping[str, Tensor]) -> None:
        _note_dequantized(self.NAME, str(self.dtype).removeprefix("torch."))
        layer.weight = nn.Parameter(self.dense(stored), requires_grad=False)

    def pack_stack(self, layer: nn.Module) -> GroupedProduct:
        stored = taken(layer)
        product = self.grouped_on_device(stored)
        if product is not None:
            return product
        if panels := self._panels(stored):
            return MatrixPerExpert(panels, panels[0].features)
        self._set_dense(layer, stored)
        return PLAIN.pack_stack(layer)

    def _panels(self, stored: Mapping[str, Tensor]) -> list[CodePanels] | None:
        if any(tensor.is_cuda for tensor in stored.values()) or (codes := self.coded(stored)) is None:
            return None
        return faster_code_panels(codes, self.dtype)

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        raise RuntimeError(f"{self.NAME} weights are multiplied once they are packed")


class PackedMethod(LinearMethod):
    """A method that holds the weights of one loaded layer."""

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        raise RuntimeError("the weights of this layer are loaded already")

    def slots(self, layer: nn.Module) -> list[Slot]:
        raise RuntimeError("the weights of this layer are loaded already")

    def pack(self, layer: Linear) -> LinearMethod:
        return self

    def pack_stack(self, layer: nn.Module) -> GroupedProduct:
        raise RuntimeError("the weights of this layer are loaded already")


@dataclass(frozen=True, slots=True)
class CodesOnCpu(PackedMethod):
    panels: CodePanels

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.panels.product(x, bias)


def taken(layer: nn.Module) -> dict[str, Tensor]:
    """The parameters of a layer, which loses them; its bias stays."""
    names = [name for name, _ in layer.named_parameters(recurse=False) if name != "bias"]
    stored = {name: layer.get_parameter(name).detach() for name in names}
    for name in names:
        delattr(layer, name)
    return stored


@cache
def _note_dequantized(name: str, dtype: str) -> None:
    logger.info(
        "products of %s weights are no faster here than dense ones: they are dequantized to %s", name, dtype
    )
