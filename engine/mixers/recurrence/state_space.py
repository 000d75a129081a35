"""The recurrence of Mamba2 in plain torch (Dao and Gu, 2024).

The state of a head is a matrix S [key_dim, value_dim]. Each token with B as its key k, input v, decay a and
step b changes it, and its C as the query q reads it:

    S <- a S + b k v^T        o = S^T q

The gated delta rule without the correction by what the state returns for k. All in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.mixers.recurrence.delta_rule import DeltaInputs, in_chunks


def recurrent_state_space(state: Tensor, inputs: DeltaInputs) -> Tensor:
    """One token of each of T sequences: [T, H, value_dim].

    Updates their states [T, H, key_dim, value_dim].
    """
    q, k, v, log_decay, beta = inputs
    state *= log_decay.exp()[..., None, None]
    state += k.unsqueeze(3) * (v * beta.unsqueeze(2)).unsqueeze(2)
    return torch.einsum("thkv,thk->thv", state, q)


def chunked_state_space(state: Tensor, inputs: DeltaInputs) -> tuple[Tensor, Tensor]:
    """T tokens of one sequence from `state` [H, key_dim, value_dim]: ([T, H, value_dim], the state after)."""
    num_tokens = len(inputs.q)
    q, k, v, log_decay, beta = (in_chunks(values) for values in inputs)
    total = log_decay.cumsum(dim=-1)  # [H, N, C]: log of the decay since the chunk's first token, inclusive
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()  # [H, N, C, C]: from j to i
    written = v * beta.unsqueeze(-1)
    out = ((q @ k.transpose(-1, -2)) * between) @ written
    q_since = q * total.exp().unsqueeze(-1)
    k_until = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
    last = total[..., -1:, None].exp()
    for index in range(q.shape[1]):
        out[:, index] += q_since[:, index] @ state
        state = state * last[:, index] + k_until[:, index] @ written[:, index]
    return out.flatten(1, 2)[:, :num_tokens].transpose(0, 1), state
