"""Kimi delta attention in plain torch (Moonshot AI, 2025): the gated delta rule of `delta_rule.py`, with a
decay for each feature of a key, so for each row of a state.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from engine.mixers.recurrence.delta_rule import DeltaInputs, in_chunks

_CHUNK: Final = 16
"""Tokens that the chunked form takes at once: of all pairs of them there are decays for each feature."""


def recurrent_kimi_delta(state: Tensor, inputs: DeltaInputs) -> Tensor:
    """One token of each of T sequences: [T, H, value_dim].

    Updates their states [T, H, key_dim, value_dim].
    """
    q, k, v, log_decay, beta = inputs
    state *= log_decay.exp().unsqueeze(3)
    known = torch.einsum("thkv,thk->thv", state, k)
    state += k.unsqueeze(3) * ((v - known) * beta.unsqueeze(2)).unsqueeze(2)
    return torch.einsum("thkv,thk->thv", state, q)


def chunked_kimi_delta(state: Tensor, inputs: DeltaInputs) -> tuple[Tensor, Tensor]:
    """T tokens of one sequence from `state` [H, key_dim, value_dim]: ([T, H, value_dim], the state after)."""
    num_tokens = len(inputs.q)
    chunks = [in_chunks(values, _CHUNK).unbind(1) for values in inputs]
    outputs = []
    for q, k, v, log_decay, beta in zip(*chunks, strict=True):
        output, state = _chunk(state, DeltaInputs(q, k, v, log_decay, beta))
        outputs.append(output)
    return torch.cat(outputs, dim=1)[:, :num_tokens].transpose(0, 1), state


def _chunk(state: Tensor, inputs: DeltaInputs) -> tuple[Tensor, Tensor]:
    """One chunk of C tokens, all of `inputs` with heads in front: ([H, C, value_dim], the state after)."""
    q, k, v, log_decay, beta = inputs
    total = log_decay.cumsum(dim=1)  # [H, C, K]: log of the decay since the chunk's first token, inclusive
    later = torch.ones(len(k[0]), len(k[0]), dtype=torch.bool, device=k.device).triu(1)
    between = (total[:, :, None] - total[:, None]).masked_fill(later[..., None], -torch.inf).exp()
    decayed = k[:, None] * between  # [H, i, j, K]: the key of j as i sees it
    k_beta, since = k * beta[..., None], total.exp()
    system = (k_beta[:, :, None] * decayed).sum(dim=3)
    right = torch.cat((v * beta[..., None], k_beta * since), dim=2)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    written, read = solved.split([v.shape[2], k.shape[2]], dim=2)
    new = written - read @ state
    out = (q * since) @ state + (q[:, :, None] * decayed).sum(dim=3) @ new
    k_until = (k * (total[:, -1:] - total).exp()).transpose(1, 2)
    return out, state * since[:, -1, :, None] + k_until @ new
