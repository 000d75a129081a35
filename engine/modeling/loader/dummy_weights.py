"""Random weights of a realistic scale, for benchmarks and tests that need only a model's shape."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from engine.modeling.layers.formats.fp8 import FP8

_STD: Final = 0.02
"""The standard deviation with which Llama and GPT-2 were initialised."""
_E8M0_STD: Final = 127 - 7
"""About a third of it, as an exponent: e2m1's values have a standard deviation of 3."""


@torch.no_grad()
def fill_randomly(model: nn.Module, seed: int) -> None:
    """Fill matrices with normal values, norms with ones, biases with zeros: activations stay in range.

    The same `seed` gives the same weights on the same kind of device. Tensor-parallel ranks draw the same
    values for equal shapes, so replicated parameters are equal.
    """
    for index, (name, parameter) in enumerate(model.named_parameters()):
        generator = torch.Generator(parameter.device).manual_seed(seed * 1_000_003 + index)
        if "scale" in name.rpartition(".")[2]:
            parameter.fill_(_STD if parameter.is_floating_point() else _E8M0_STD)
        elif name.endswith(".order"):
            continue  # of input features: their own
        elif parameter.dtype == torch.int8:
            parameter.random_(-128, 128, generator=generator)
        elif parameter.dtype == torch.int32:
            parameter.random_(-(1 << 31), (1 << 31) - 1, generator=generator)
        elif parameter.dtype == torch.uint8:
            parameter.random_(0, 256, generator=generator)
        elif parameter.dtype == FP8:
            parameter.copy_(torch.empty_like(parameter, dtype=torch.float16).normal_(generator=generator))
        elif parameter.dim() > 1:
            parameter.normal_(0.0, _STD, generator=generator)
            if parameter.dtype == torch.float32:  # values that 16 bits hold, as in checkpoints
                parameter.copy_(parameter.bfloat16())
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
