"""The gated delta rule and its causal convolution in plain torch: for CPUs, and the oracle for kernels.

The state of a value head is a matrix S [key_dim, value_dim]. Each token with key k, value v, decay a and
learning rate b changes it, and its query q reads it:

    S <- a S + b k (v - (a S)^T k)^T        o = S^T q

Keys and queries are scaled to unit length first, queries to 1 / sqrt(key_dim) then. All in float32.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

CHUNK: Final = 64
"""Tokens that the chunked form takes at once. The result depends on it only by rounding."""
_EPS: Final = 1e-6


class DeltaInputs(NamedTuple):
    """Inputs of a rule for T tokens of H value heads, in float32."""

    q: Tensor
    """[T, H, key_dim]"""
    k: Tensor
    """[T, H, key_dim]"""
    v: Tensor
    """[T, H, value_dim]"""
    log_decay: Tensor
    """[T, H], or [T, H, key_dim] if each feature of a key has its own; at most 0."""
    beta: Tensor
    """[T, H]"""

    def rows(self, part: slice) -> DeltaInputs:
        return DeltaInputs(*(values[part] for values in self))


def unit_keys(q: Tensor, k: Tensor, repeats: int) -> tuple[Tensor, Tensor]:
    """Queries and keys [T, key_heads, key_dim] as the rule takes them, repeated for each value head."""
    q, k = (_unit(heads.float()).repeat_interleave(repeats, dim=1) for heads in (q, k))
    return q * q.shape[-1] ** -0.5, k


def _unit(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt(heads.square().sum(dim=-1, keepdim=True) + _EPS)


def convolve(window: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """SiLU of the causal convolution of each feature: `window` [B, features, K - 1 + T] -> [B, features, T].

    The first K - 1 columns are inputs before the first token. `weight` is [features, 1, K].
    """
    return functional.silu(functional.conv1d(window, weight, bias, groups=len(weight)))


def recurrent_delta_rule(state: Tensor, inputs: DeltaInputs) -> Tensor:
    """One token of each of T sequences: [T, H, value_dim].

    Updates their states [T, H, key_dim, value_dim].
    """
    q, k, v, log_decay, beta = inputs
    state *= log_decay.exp()[..., None, None]
    known = torch.einsum("thkv,thk->thv", state, k)
    state += k.unsqueeze(3) * ((v - known) * beta.unsqueeze(2)).unsqueeze(2)
    return torch.einsum("thkv,thk->thv", state, q)


def chunked_delta_rule(state: Tensor, inputs: DeltaInputs) -> tuple[Tensor, Tensor]:
    """T tokens of one sequence from `state` [H, key_dim, value_dim]: ([T, H, value_dim], the state after).

    The tokens of a chunk are computed together. What they write follows from a triangular system (the UT
    transform of the delta rule); the chunks follow one another.
    """
    num_tokens = len(inputs.q)
    q, k, v, log_decay, beta = (in_chunks(values) for values in inputs)
    total = log_decay.cumsum(dim=-1)  # [H, N, C]: log of the decay since the chunk's first token, inclusive
    since = total.exp().unsqueeze(-1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()  # [H, N, C, C]: from j to i
    k_beta = k * beta.unsqueeze(-1)
    system = (k_beta @ k.transpose(-1, -2)) * between
    right = torch.cat((v * beta.unsqueeze(-1), k_beta * since), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    written, read = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    within = (q @ k.transpose(-1, -2)) * between
    q_since = q * since
    k_until = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
    last = since[..., -1:, :]
    out = torch.empty_like(v)
    for index in range(q.shape[1]):
        new = written[:, index] - read[:, index] @ state
        out[:, index] = q_since[:, index] @ state + within[:, index] @ new
        state = state * last[:, index] + k_until[:, index] @ new
    return out.flatten(1, 2)[:, :num_tokens].transpose(0, 1), state


def in_chunks(values: Tensor, size: int = CHUNK) -> Tensor:
    """[T, H, ...] -> [H, chunks, size, ...]; what is added at the end is zero, and changes no state."""
    missing = -len(values) % size
    padded = functional.pad(values, (0, 0) * (values.dim() - 1) + (0, missing))
    chunks = padded.view(-1, size, *values.shape[1:])
    return chunks.movedim(2, 0).contiguous()
