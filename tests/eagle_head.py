"""An EAGLE-3 head in plain PyTorch, to train one and to compare the engine with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    max_position: int
    layers: tuple[int, ...]
    """Layers of the target whose outputs it reads."""
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def config(self) -> dict[str, Any]:
        """Its config.json, as SpecForge writes it."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "max_position_embeddings": self.max_position,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": list(self.layers),
                "use_aux_hidden_state": True,
            },
        }


class _Norm(nn.Module):
    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class TrainableHead(nn.Module):
    """Row i: the target's token i + 1 and the features of token i; predicts token i + 2."""

    def __init__(self, shape: HeadShape, ids: Tensor) -> None:
        """`ids`: the tokens that it can draft, ascending [draft_vocab_size]."""
        super().__init__()
        self.shape, self.ids = shape, ids
        d, size = shape.hidden_size, shape.head_dim

        def matrix(inner: int, outer: int) -> nn.Linear:
            return nn.Linear(inner, outer, bias=False)

        self.fc = matrix(len(shape.layers) * d, d)
        self.input_norm, self.hidden_norm, self.mlp_norm, self.norm = (
            _Norm(d, shape.norm_eps) for _ in range(4)
        )
        self.q, self.k, self.v = (
            matrix(2 * d, heads * size) for heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        )
        self.o = matrix(shape.num_heads * size, d)
        self.gate, self.up = matrix(d, shape.intermediate_size), matrix(d, shape.intermediate_size)
        self.down = matrix(shape.intermediate_size, d)
        self.lm_head = matrix(d, shape.draft_vocab_size)

    def chain(self, embedded: Tensor, hidden: Tensor, steps: int) -> list[Tensor]:
        """Logits [T - s, draft vocabulary] of step s, for s in [0, steps): of rows s to T.

        `embedded` [T, d]: of the rows' tokens. `hidden` [T, len(layers) * d]: the target's outputs. Row i of
        step s is the s-th one behind the last row with the target's features, as in drafting: it has the
        head's own features of row i - 1 of step s - 1 ("training-time test", Li et al. 2025).
        """
        features = self.fc(hidden)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits = []
        for step in range(steps):
            if step:
                features = features[:-1]  # of the rows before
            x, features = self._layer(embedded[step:], features, keys, values)
            logits.append(self.lm_head(x))
        return logits

    def _layer(
        self, embedded: Tensor, features: Tensor, keys: list[Tensor], values: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Compute one step: normalised hidden states for the output layer, and features for the next rows."""
        step, rows = len(keys), len(features)
        x = torch.cat([self.input_norm(embedded), self.hidden_norm(features)], -1)
        positions = torch.arange(step, step + rows)
        groups = self.shape.num_heads // self.shape.num_kv_heads
        q = self._rotated(self._split(self.q(x)), positions)
        keys.append(self._rotated(self._split(self.k(x)), positions).repeat_interleave(groups, 0))
        values.append(self._split(self.v(x)).repeat_interleave(groups, 0))
        # Row i of step s sees rows up to i - s of step 0, then one row of each step: i - s + r of step r.
        first = q @ keys[0][:, :rows].transpose(1, 2)
        first = first.masked_fill(torch.ones(rows, rows).triu(1).bool(), float("-inf"))
        own = [(q * keys[r][:, :rows]).sum(-1, keepdim=True) for r in range(1, step + 1)]
        weights = (torch.cat([first, *own], -1) * self.shape.head_dim**-0.5).softmax(-1)
        heads = weights[..., :rows] @ values[0][:, :rows]
        for r in range(1, step + 1):
            heads = heads + weights[..., rows + r - 1 : rows + r] * values[r][:, :rows]
        residual = features + self.o(heads.transpose(0, 1).flatten(1))
        x = self.mlp_norm(residual)
        residual = residual + self.down(functional.silu(self.gate(x)) * self.up(x))
        return self.norm(residual), residual

    def _split(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self.shape.head_dim).transpose(0, 1)

    def _rotated(self, heads: Tensor, positions: Tensor) -> Tensor:
        size = self.shape.head_dim
        angles = positions[:, None] * self.shape.rope_theta ** (-torch.arange(0, size, 2) / size)
        one, other = heads.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)

    def save(self, folder: Path) -> None:
        """Write a checkpoint in the format of SpecForge."""
        inner = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
        names = {
            "fc": "fc",
            "norm": "norm",
            "lm_head": "lm_head",
            "input_norm": "midlayer.input_layernorm",
            "hidden_norm": "midlayer.hidden_norm",
            "mlp_norm": "midlayer.post_attention_layernorm",
            **{short: f"midlayer.self_attn.{name}" for short, name in inner.items()},
            **{name: f"midlayer.mlp.{name}_proj" for name in ("gate", "up", "down")},
        }
        tensors = {
            f"{name}.weight": self.get_parameter(f"{ours}.weight").detach().clone()
            for ours, name in names.items()
        }
        known = torch.zeros(self.shape.vocab_size, dtype=torch.bool)
        known[self.ids] = True
        tensors |= {"d2t": self.ids - torch.arange(len(self.ids)), "t2d": known}
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.shape.config(), indent=2) + "\n")
