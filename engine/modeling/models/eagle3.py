"""EAGLE-3 heads: a decoder layer over a token's embedding and the target's hidden state before it."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.linear.linear_layer import Linear, Slot
from engine.modeling.layers.rope import rope_table
from engine.modeling.models.attention_table import attention_table
from engine.modeling.models.base import Attention, CausalLM
from engine.modeling.models.draft_head import DraftHead
from engine.modeling.models.llama import LlamaAttention
from engine.modeling.models.mlp_table import mlp_names, mlp_table
from engine.modeling.models.weight_table import ParamSlice, WeightTable

_NEVER: Final = -10_000.0
"""Logit of tokens outside the draft vocabulary: finite, since sums of logits must be."""


class Eagle3Head(DraftHead):
    """Its features are a product of the outputs of some of the target's layers."""

    def __init__(self, spec: ModelSpec, layers: Layers) -> None:
        super().__init__(spec, layers)
        if spec.eagle is None or spec.rope is None:
            raise ValueError("no EAGLE-3 head")
        self.eagle = spec.eagle
        self.ops = layers.ops
        hidden = spec.hidden_size
        features = spec.eagle.num_taps * spec.eagle.target_hidden_size
        within = layers.within("midlayer.")
        self.fc = layers.linear("fc", in_features=features, out_features=hidden, bias=False)
        self.input_norm, self.hidden_norm, self.mlp_norm, self.norm = (layers.norm(spec) for _ in range(4))
        self.attention = LlamaAttention(self.part, 0, within, in_features=2 * hidden)
        self.mlp = within.mlp(spec, 0, mlp_names(spec))
        self.head = Linear(hidden, spec.eagle.draft_vocab_size, bias=False)
        self.vocabulary = _DraftVocabulary(spec.eagle.draft_vocab_size)
        self._table = rope_table(
            spec.rope, spec.rotary_dim, spec.max_position, device=self.norm.weight.device
        )

    @staticmethod
    def num_embeddings(spec: ModelSpec) -> int:
        """Its own only where the target's are of another size."""
        return spec.vocab_size if _embeds(spec) else 0

    def share(self, target: CausalLM) -> None:
        if not _embeds(self.spec):
            super().share(target)

    def features_of(self, hidden: Tensor) -> Tensor:
        features: Tensor = self.fc(hidden[:, self.eagle.target_hidden_size :].contiguous())
        return features

    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        features = self.features[: len(input_ids)]
        normed = self.hidden_norm(features)
        residual = (normed if self.eagle.norm_before_residual else features).clone()
        rotation = self.ops.rotation(self._table, positions, features.dtype)
        x = torch.cat([self.input_norm(self.embed(input_ids)), normed], dim=-1)
        x, residual = self.mlp_norm.add(self.attention(x, rotation, attn), residual)
        x, residual = self.norm.add(self.mlp(x), residual)
        return torch.cat([x, residual], dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Over the target's vocabulary."""
        scores: Tensor = self.head(hidden)
        if self.eagle.draft_vocab_size == self.spec.vocab_size:
            return scores
        everything = scores.new_full((len(scores), self.spec.vocab_size), _NEVER)
        return everything.index_copy_(1, self.vocabulary.ids, scores)

    def weight_table(self) -> WeightTable:
        layer = {
            "input_layernorm": ParamSlice("input_norm"),
            "hidden_norm": ParamSlice("hidden_norm"),
            "post_attention_layernorm": ParamSlice("mlp_norm"),
            **attention_table(self.spec, self.part, self.shard),
            **mlp_table(self.spec, self.part, self.shard, 0),
        }
        table = {f"midlayer.{name}": place for name, place in layer.items()}
        table |= {"fc": ParamSlice("fc"), "norm": ParamSlice("norm"), "lm_head": ParamSlice("head")}
        if _embeds(self.spec):
            table["embed_tokens"] = ParamSlice("embed")
        if self.eagle.draft_vocab_size < self.spec.vocab_size:
            table["d2t"] = ParamSlice("vocabulary")
        return table

    def source_name(self, name: str) -> str:
        """vLLM's checkpoints call the layer by its number."""
        name = name.removeprefix("model.")
        return "d2t.ids" if name == "d2t" else name.replace("layers.0.", "midlayer.", 1)

    def ignores(self, name: str) -> bool:
        unused = name in ("d2t.ids", "t2d") or name.endswith("rotary_emb.inv_freq")
        unused |= name == "embed_tokens.weight" and not _embeds(self.spec)
        return unused or super().ignores(name)


def _embeds(spec: ModelSpec) -> bool:
    return spec.eagle is not None and spec.eagle.target_hidden_size != spec.hidden_size


class _DraftVocabulary(nn.Module):
    """The tokens that a head can draft, as ids of its target. Checkpoints store their distances."""

    ids: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("ids", torch.arange(size))

    def slots(self) -> list[Slot]:
        return [Slot("ids", self.ids, convert=lambda stored: stored + torch.arange(len(stored)).to(stored))]
