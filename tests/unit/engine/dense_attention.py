"""Attention over one whole sequence, written out: no pages, no batch. The simplest correct form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.model_config.parts.recurrent_spec import Rule
from engine.modeling.layers.indexer import IndexRows
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.layers.recurrent import RecurrentWeights
from engine.modeling.models.base import CausalLM


def plain(layers: int, head_dim: int) -> list[LayerAttention]:
    """Layers that attend to everything, as in Llama."""
    return [LayerAttention(scale=head_dim**-0.5)] * layers


def attend(
    q: Tensor, keys: Tensor, values: Tensor, rule: LayerAttention, chosen: Tensor | None = None
) -> Tensor:
    """Queries [T, heads, head_dim] of the last of C tokens over keys and values [C, kv_heads, head_dim].

    `chosen` [T, C]: which tokens each attends to; None: those that the rule says.
    """
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,chd->htc", q, keys) * rule.scale
    if rule.soft_cap is not None:
        scores = torch.tanh(scores / rule.soft_cap) * rule.soft_cap
    positions = torch.arange(len(keys), device=q.device)
    distance = positions[len(keys) - len(q) :, None] - positions
    visible = distance >= 0 if rule.window is None else (distance >= 0) & (distance < rule.window)
    if chosen is not None:
        visible = visible & chosen
    scores = scores.masked_fill(~visible, -torch.inf)
    if rule.sinks is not None:
        sinks = rule.sinks.to(q)[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat((scores, sinks), dim=2)
    weights = scores.softmax(-1)[:, :, : len(keys)]
    return torch.einsum("htc,chd->thd", weights, values)


class DenseAttention:
    """The step's tokens are one sequence from its start."""

    def __init__(self, model: CausalLM) -> None:
        self._num_heads = model.part.num_heads
        self._delta = model.part.recurrent
        self._rules: Sequence[LayerAttention] = model.layer_attention()
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}
        self._chosen = torch.empty(0)

    def forward(self, layer: int, qkv: Tensor, rotation: Rotation | None) -> Tensor:
        rule = self._rules[layer]
        if rule.latent_rank is not None:
            return attend(qkv[:, :-1], qkv[:, -1:], qkv[:, -1:, : rule.latent_rank], rule)
        if rule.source is not None:
            q = qkv if rotation is None else rotation.turn(qkv)
            return attend(q, *self._stored[rule.source], rule)
        kv_heads = (qkv.shape[1] - self._num_heads) // 2
        q, k, v = qkv.split([self._num_heads, kv_heads, kv_heads], dim=1)
        if rotation is not None:
            q, k = rotation.turn(q), rotation.turn(k)
        self._stored[layer] = (k, v)
        return attend(q, k, v, self._rules[layer])

    def attend_to_chosen(self, layer: int, rows: Tensor, index: IndexRows | None) -> Tensor:
        rule = self._rules[layer]
        assert rule.chosen is not None
        if index is not None:
            products = torch.einsum("thd,cd->htc", index.queries.float(), index.keys.float()).clamp(min=0)
            scores = torch.einsum("th,htc->tc", index.weights, products)
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            best = scores.topk(min(rule.chosen, len(rows))).indices
            self._chosen = torch.zeros_like(scores).scatter_(1, best, 1.0).bool()
        values = rows[:, -1:, : rule.latent_rank]
        return attend(rows[:, :-1], rows[:, -1:], values, rule, self._chosen)

    def recur(
        self, layer: int, mixed: Tensor, log_decay: Tensor, beta: Tensor, weights: RecurrentWeights
    ) -> Tensor:
        """Token by token, as the rule is defined."""
        kernel = weights.kernel
        heads, features, columns = log_decay.shape[1], mixed.shape[1], kernel.shape[2]
        padded = torch.cat((mixed.new_zeros(columns - 1, features), mixed)).float()
        taps = [padded[k : k + len(mixed)] * kernel[:, 0, k].float() for k in range(columns)]
        summed = torch.stack(taps).sum(dim=0)
        convolved = functional.silu(summed if weights.bias is None else summed + weights.bias)
        delta = self._delta
        assert delta is not None
        key_heads, key_dim, value_dim = delta.key_heads, delta.key_dim, delta.value_dim
        q, k, v = convolved.split([key_heads * key_dim, key_heads * key_dim, heads * value_dim], dim=1)
        q, k = (x.view(len(x), key_heads, key_dim) for x in (q, k))
        is_delta = delta.rule is not Rule.STATE_SPACE
        if is_delta:
            q, k = (x / (x.square().sum(dim=2, keepdim=True) + 1e-6).sqrt() for x in (q, k))
            q = q / key_dim**0.5
        q, k = (x.repeat_interleave(heads // key_heads, dim=1) for x in (q, k))
        v = v.view(len(v), heads, value_dim)
        state = torch.zeros(heads, key_dim, value_dim)
        out = torch.empty(v.shape)
        for t in range(len(mixed)):
            state = state * log_decay[t].exp().view(heads, -1, 1)
            error = v[t] - torch.einsum("hkv,hk->hv", state, k[t]) if is_delta else v[t]
            state = state + torch.einsum("hk,hv,h->hkv", k[t], error, beta[t])
            out[t] = torch.einsum("hkv,hk->hv", state, q[t])
        return (out if weights.skip is None else out + v * weights.skip[:, None]).to(mixed.dtype)
