"""Rotary position embeddings: the table of angles, with the scalings that long-context models use."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from engine.model_config.parts.rope_spec import RopeScaling, RopeSpec


def rope_table(spec: RopeSpec, head_dim: int, max_position: int, device: torch.device) -> Tensor:
    """cos and sin of every angle: float32 [max_position, head_dim], cos in the first half, sin in the second.

    Both are multiplied by `spec.magnitude`.

    Fused GPU kernels read this layout. float32 whatever the model's dtype: at position 100,000 a bfloat16
    angle is off by hundreds of radians.
    """
    positions = torch.arange(max_position, dtype=torch.float32, device="cpu")
    angles = torch.outer(positions, inverse_frequencies(spec, head_dim))
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    rotated = spec.rotated_features(head_dim) // 2
    for part in table.chunk(2, dim=-1):
        part[:, :rotated] *= spec.magnitude
    return table.to(device)


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> Tensor:
    """Radians per token for each pair of features: float32 [head_dim / 2], highest frequency first.

    Pairs that are not rotated come last, with 0.
    """
    rotated = spec.rotated_features(head_dim)
    exponents = torch.arange(0, rotated, 2, dtype=torch.float32, device="cpu") / rotated
    frequencies = 1.0 / (spec.theta**exponents)
    match spec.scaling:
        case RopeScaling.NONE | RopeScaling.DYNAMIC:
            scaled = frequencies
        case RopeScaling.LINEAR:
            scaled = frequencies / spec.factor
        case RopeScaling.LLAMA3:
            scaled = _llama3(frequencies, spec)
        case RopeScaling.PROPORTIONAL:
            turned = torch.arange(len(frequencies), device="cpu") < int(spec.share * head_dim // 2)
            scaled = frequencies.where(turned, 0.0) / spec.factor
        case RopeScaling.YARN:
            scaled = _yarn(frequencies, spec)
        case RopeScaling.LONGROPE:
            scaled = frequencies / torch.tensor(spec.factors, device="cpu")
    return functional.pad(scaled, (0, (head_dim - rotated) // 2))


def _llama3(frequencies: Tensor, spec: RopeSpec) -> Tensor:
    """Divide low frequencies by `factor`, keep high ones, interpolate between.

    A frequency is low if it makes fewer than `low_freq_factor` turns within the original context, and high if
    it makes more than `high_freq_factor`. High frequencies encode local order, which must not change.
    """
    turns = spec.original_max_position * frequencies / (2 * math.pi)
    kept = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1.0 - kept) * frequencies / spec.factor + kept * frequencies


def _yarn(frequencies: Tensor, spec: RopeSpec) -> Tensor:
    """Divide low frequencies by `factor`, keep high ones, interpolate by their index between.

    The range between is that of frequencies that make `beta_fast` to `beta_slow` turns within the original
    context. (YaRN, Peng et al. 2023.)
    """
    pairs = len(frequencies)

    def index(turns: float) -> float:
        return pairs * math.log(spec.original_max_position / (turns * 2 * math.pi)) / math.log(spec.theta)

    low, high = index(spec.beta_fast), index(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    width = (high - low) or 0.001
    divided = ((torch.arange(pairs, dtype=torch.float32, device="cpu") - low) / width).clamp(0.0, 1.0)
    return frequencies / spec.factor * divided + frequencies * (1.0 - divided)
