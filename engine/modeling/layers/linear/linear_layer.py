"""Linear layers, and how they store and multiply their weights: one `LinearMethod` per format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.modeling.layers.linear.onednn import onednn_product, packed
from engine.modeling.layers.linear.packable import Packable
from engine.modeling.layers.linear.panels import PackedMatrix, faster_panels
from engine.modeling.layers.routing import Routes


def weight(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    """An uninitialised parameter on torch's current device; the loader fills it. Without `dtype`: the current
    default."""
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of a checkpoint's module, and the parameter that it fills."""

    source: str
    """Name of the tensor within the module, such as "weight"."""
    target: Tensor
    """[out, in] or [out]; for experts with their number in front."""
    tile: tuple[int | None, int | None] = (1, 1)
    """Features (out, in) that one entry of the tensor stands for; None: all.

    If all output features have one entry, the tensor is [in] and its target [1, in], which merged projections
    fill with the same values.
    """
    transposed: bool = False
    """Whether checkpoints store the tensor as [in, out]."""
    single: bool = False
    """Whether the tensor has one entry, which fills the whole target."""
    summary: bool = False
    """Whether the target has one column for whole rows of the tensor."""
    rows: int = 1
    """Rows of the target that a row of the tensor is repeated for; `tile` is then of the target's."""
    convert: Callable[[Tensor], Tensor] | None = None
    """Computes the part of the target from a part of the tensor; None: the values are copied."""


@runtime_checkable
class _Stored(Protocol):
    """A module whose tensors in a checkpoint differ from its parameters."""

    def slots(self) -> list[Slot]: ...


def slots_of(module: nn.Module) -> list[Slot]:
    """Every tensor that a checkpoint holds for `module`, without its submodules."""
    if isinstance(module, _Stored):
        return module.slots()
    return [Slot(name, parameter) for name, parameter in module.named_parameters(recurse=False)]


GroupedProduct: TypeAlias = Callable[[Tensor, Routes, bool], Tensor]
"""Multiplies pairs ordered by experts: [P, in], or if the last is true tokens [T, in], to [P, out]."""


class LinearMethod(ABC):
    """A format of the weights of linear layers. `layer`: a `Linear`, or a stack of one matrix per expert."""

    @abstractmethod
    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        """Register the parameters of a layer, uninitialised; those of a stack have `stack` in front."""

    @abstractmethod
    def slots(self, layer: nn.Module) -> list[Slot]:
        """The tensors that a checkpoint holds for a layer, its bias aside, and what they fill."""

    @abstractmethod
    def pack(self, layer: Linear) -> LinearMethod:
        """Rearrange the parameters of a loaded layer for speed; the method that applies them from now on."""

    @abstractmethod
    def pack_stack(self, layer: nn.Module) -> GroupedProduct:
        """The same for the matrices of experts."""

    @abstractmethod
    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, in] times the weight transposed, plus `bias` [out]: [T, out]."""

    def gated(self, layer: Linear, x: Tensor) -> Tensor | None:
        """silu(gate) * up in one kernel, [T, I], where gate and up are the halves of the product, [T, 2I].

        None: there is no such kernel for `x`.
        """
        return None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times `weight` [out, in] transposed, plus `bias` [out]: [T, out]."""
    if weight.is_mkldnn:
        return onednn_product(x, weight, bias)
    if x.is_cuda and len(x) == 1:
        from engine.kernels.matmul.matvec import matvec, suits  # Triton ships only with torch's CUDA builds

        if suits(x, weight):
            return matvec(x, weight, bias)
    return functional.linear(x, weight, bias)


@dataclass(frozen=True, slots=True)
class PlainWeight(LinearMethod):
    """`weight` [out, in] in the dtype of the activations, as checkpoints store it until it is packed."""

    panels: PackedMatrix | None = field(default=None, compare=False)
    """`weight`, if it is packed for our kernel."""

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, *, stack: tuple[int, ...] = ()
    ) -> None:
        layer.weight = weight(*stack, out_features, in_features)

    def slots(self, layer: nn.Module) -> list[Slot]:
        return [Slot("weight", layer.get_parameter("weight"))]

    def pack(self, layer: Linear) -> LinearMethod:
        weight, panels = _packed(layer.weight.detach())
        layer.weight = nn.Parameter(weight, requires_grad=False)
        return PlainWeight(panels)

    def pack_stack(self, layer: nn.Module) -> GroupedProduct:
        stack = layer.get_parameter("weight").detach()
        if stack.is_cuda and stack.dtype != torch.float32:
            from engine.modeling.layers.linear.grouped_gpu import (
                GroupedWeight,  # Triton ships only with torch's CUDA builds
            )

            return GroupedWeight(stack)
        del layer.weight
        return MatrixPerExpert([_Matrix(*_packed(plain)) for plain in stack], stack.shape[1])

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, layer.weight, bias) if self.panels is None else self.panels.product(x, bias)

    def gated(self, layer: Linear, x: Tensor) -> Tensor | None:
        if not x.is_cuda or self.panels is not None:
            return None
        from engine.kernels.matmul.matvec import gated_matvec, suits

        return gated_matvec(x, layer.weight) if suits(x, layer.weight) else None


def _packed(plain: Tensor) -> tuple[Tensor, PackedMatrix | None]:
    """`plain` [out, in] in the layout that this machine multiplies fastest, and its panels if it has any."""
    panels = faster_panels(plain)
    return (packed(plain), None) if panels is None else (panels.memory, panels)


class Matrix(Protocol):
    """The packed weight of one expert."""

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, in] and a bias [out], if any, to [T, out]."""


@dataclass(frozen=True, slots=True)
class _Matrix:
    weight: Tensor
    panels: PackedMatrix | None = field(compare=False)
    """`weight`, if it is packed for our kernel."""

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, self.weight, bias) if self.panels is None else self.panels.product(x, bias)


@dataclass(frozen=True, slots=True)
class MatrixPerExpert:
    """A `GroupedProduct` that multiplies one expert's rows after the other's. Waits for the device."""

    matrices: Sequence[Matrix]
    features: int

    def __call__(self, x: Tensor, routes: Routes, by_token: bool) -> Tensor:
        if by_token:
            x = x[routes.order // routes.per_token]
        out = x.new_empty(len(x), self.features)
        starts = routes.starts.tolist()
        for matrix, start, end in zip(self.matrices, starts, starts[1:], strict=False):
            if start < end:
                out[start:end] = matrix.product(x[start:end], None)
        return out


PLAIN: Final = PlainWeight()


class Addition(Protocol):
    """Something that depends on a layer's input and is added to its products."""

    @property
    def is_idle(self) -> bool:
        """Whether the next forward pass has nothing to add."""

    def add(self, multiply: Callable[[], Tensor], x: Tensor) -> Tensor:
        """What `multiply` returns for `x` [T, in], [T, out], which is overwritten, with the addition. It may
        begin before it."""


class Linear(Packable):
    """x [T, in] -> [T, out]. Its method says how the weight is stored and multiplied."""

    weight: Tensor
    """[out, in], where the method has a plain one."""
    adaptable: ClassVar[bool] = True
    """Whether all that uses the weight goes through `product`."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, method: LinearMethod = PLAIN
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.stored = method
        """How a checkpoint has the weight."""
        self.method = method
        self.addition: Addition | None = None
        method.create(self, in_features, out_features)
        self.bias = weight(out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.addition is None or self.addition.is_idle:
            return self.method.apply(self, x, bias)
        return self.addition.add(lambda: self.method.apply(self, x, bias), x)

    def slots(self) -> list[Slot]:
        """The tensors that a checkpoint holds for this layer."""
        biases = [] if self.bias is None else [Slot("bias", self.bias)]
        return self.method.slots(self) + biases

    def pack(self) -> None:
        self.method = self.method.pack(self)

    def unpacked(self) -> Linear:
        has_bias = self.bias is not None
        return Linear(self.in_features, self.out_features, bias=has_bias, method=self.stored)

    def packed(self) -> object:
        return dict(self.named_parameters(recurse=False)), self.method
