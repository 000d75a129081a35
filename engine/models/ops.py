"""The small operations between a model's matrix products, each one call, so that a device may fuse it.

`Ops` is plain torch: it runs everywhere and is the oracle for whatever replaces it. A GPU backend subclasses
it and overrides what it has a kernel for. Results may be written into the arguments: a caller gives its
tensors away.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Ops", "Rotation", "ops_for"]

logger = logging.getLogger(__name__)


class Rotation:
    """What `Ops.rotate` needs of a step's positions: made once for all layers, read by its maker alone."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Angles(Rotation):
    cos: Tensor
    """[T, 1, head_dim], the model's dtype: the cosine of each feature's angle."""
    sin: Tensor
    """[T, 1, head_dim]: the sine, negated in the first half, where the rotation subtracts."""


class Ops:
    """T is the number of tokens in the step, d the hidden size, I the MLP's, D the size of a head."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`x` [..., n] scaled to unit mean square over its last dimension, times `weight` [n]."""
        return functional.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual), both [T, d]."""
        residual = residual.add_(x)
        return self.rms_norm(residual, weight, eps), residual

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for `gate_up` [T, 2I], gate first: [T, I]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def gelu(self, x: Tensor) -> Tensor:
        """The tanh approximation, in which GPT-2 was trained."""
        return functional.gelu(x, approximate="tanh")

    def qk_norm(self, qk: Tensor, q_weight: Tensor, k_weight: Tensor, num_heads: int, eps: float) -> Tensor:
        """Normalise each head of `qk` [T, H, D]: the first `num_heads` are queries, the rest keys."""
        q, k = qk[:, :num_heads], qk[:, num_heads:]
        return torch.cat((self.rms_norm(q, q_weight, eps), self.rms_norm(k, k_weight, eps)), dim=1)

    def rotation(self, table: Tensor, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Look up the angles of `positions` [T] in a `rope_table`."""
        cos, sin = table[positions].unsqueeze(1).to(dtype).chunk(2, dim=-1)
        return _Angles(cos=torch.cat((cos, cos), dim=-1), sin=torch.cat((-sin, sin), dim=-1))

    def rotate(self, heads: Tensor, rotation: Rotation) -> Tensor:
        """Turn each pair (feature i, feature i + D/2) of `heads` [T, H, D] by its token's angle."""
        assert isinstance(rotation, _Angles), "whoever rotates has made the rotation"
        swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
        return torch.addcmul(heads * rotation.cos, swapped, rotation.sin)


def ops_for(device: torch.device, dtype: torch.dtype) -> Ops:
    """The operations for tensors of `dtype` on `device`."""
    if device.type != "cuda" or dtype == torch.float32:
        return Ops()
    if find_spec("flashinfer") is None:
        logger.warning(
            "flashinfer is not installed: the GPU runs plain torch operations, several times slower"
        )
        return Ops()
    from engine.models.flashinfer_ops import FlashInferOps  # imports CUDA libraries

    return FlashInferOps()
