"""Random weights of a sane scale: for benchmarks and tests that need a model's shape, not its knowledge."""

from __future__ import annotations

from typing import Final

import torch

from engine.models.base import CausalLM

__all__ = ["fill_randomly"]

_STD: Final = 0.02
"""The standard deviation that Llama and GPT-2 were initialised with."""


@torch.no_grad()
def fill_randomly(model: CausalLM, seed: int) -> None:
    """Matrices normal, norms one, biases zero: activations neither vanish nor overflow.

    The same `seed` gives the same weights on the same kind of device. Ranks that share a model draw the same
    numbers for shapes that are the same, so what they must hold alike is alike.
    """
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.dim() > 1:
            generator = torch.Generator(parameter.device).manual_seed(seed * 1_000_003 + index)
            parameter.normal_(0.0, _STD, generator=generator)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
