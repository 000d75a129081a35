"""Products of experts on NVIDIA GPUs, captured in graphs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.matmul.grouped_matmul import grouped_matmul
from engine.modeling.layers.routing import Routes


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A `GroupedProduct` with weights in the dtype of the activations."""

    stack: Tensor
    """[E, out, in]"""

    def __call__(self, x: Tensor, routes: Routes, by_token: bool) -> Tensor:
        order = routes.order if by_token else None
        return grouped_matmul(
            x, self.stack, x.dtype, starts=routes.starts, order=order, per_token=routes.per_token
        )
