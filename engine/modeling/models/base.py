"""The interface between models and the model runner."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from engine.core.batch.media_rows import MediaRows
from engine.model_config.errors import UnsupportedModel, WeightsError
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Head
from engine.model_config.quantization import Packing
from engine.model_config.shard import Cut
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.indexer import IndexRows
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.linear.packable import Packable
from engine.modeling.layers.modules import Embedding
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.layers.recurrent import RecurrentWeights
from engine.modeling.models.weight_table import ParamSlice, WeightTable

_KV_SCALES: Final = (".k_scale", ".v_scale", ".kv_scale")
"""See kv_scales.py."""
_OF_EXPERT: Final = re.compile(r"\.experts\.(\d+)\.")


class Attention(Protocol):
    """Causal attention over each sequence, as `CausalLM.layer_attention` says for each layer.

    It also stores keys and values, since it owns the KV pool.
    """

    def forward(self, layer: int, qkv: Tensor, rotation: Rotation | None) -> Tensor:
        """Queries, keys and values, concatenated: [T, H + 2 * KVH, D] -> [T, H, D].

        Without keys and values of its own, queries alone: [T, H, D] -> [T, H, D].
        With latent attention, queries and one row in place of keys and values: [T, H + 1, D] -> [T, H, rank].
        Queries and keys are not rotated yet: `rotation` does that; None for models without rotary positions.
        `qkv` may be overwritten.
        """
        ...


class RecurrentAttention(Attention, Protocol):
    """The same for models whose other layers have a recurrent state, which it owns too."""

    def recur(
        self, layer: int, mixed: Tensor, log_decay: Tensor, beta: Tensor, weights: RecurrentWeights
    ) -> Tensor:
        """The rule of `RecurrentSpec` over each sequence, from its state and into it.

        `mixed` [T, features]: queries, keys and values, concatenated, before their convolution. `log_decay`
        [T, H], or [T, H, key_dim] if the rule has one for each feature, and `beta` [T, H] in float32.
        Returns [T, H, value_dim].
        """
        ...


class SparseAttention(Attention, Protocol):
    """The same for models whose tokens attend to those that an indexer chooses."""

    def attend_to_chosen(self, layer: int, rows: Tensor, index: IndexRows | None) -> Tensor:
        """Latent attention of each token to `LayerAttention.chosen` tokens: [T, H + 1, D] -> [T, H, rank].

        `index`: None: to those that the layer before has chosen in this step.
        """
        ...


class AdapterSlotsOfRows(Protocol):
    def use(self, slots: Tensor | None) -> None:
        """`slots` [T], on the device: the slot of each row's adapter, or -1. None: no row has one."""


class CausalLM(nn.Module, ABC):
    """A decoder-only transformer over a flat batch of tokens from any number of sequences."""

    def __init__(self, spec: ModelSpec, layers: Layers) -> None:
        super().__init__()
        self.spec = spec
        """The shape of the whole model, over all ranks."""
        self.shard = layers.communicator.shard
        self.part = layers.communicator.shard.of(spec)
        """The shape of this rank's part."""
        self.embed = Embedding(self.num_embeddings(spec), spec.hidden_size)
        self._live_rows = layers.live_rows
        self.adapter_rows: AdapterSlotsOfRows | None = None
        """Told which adapters the rows have; None: the model takes no adapters."""
        self.media: MediaRows | None = None
        """Rows of images in the next forward pass."""
        self.head: nn.Module = self.make_head(layers)

    def make_head(self, layers: Layers) -> nn.Module:
        """hidden [S, d] -> what `logits` returns."""
        match self.spec.head:
            case Head.VOCABULARY:
                return layers.head(self.embed, tied=self.spec.tied_embeddings)
            case Head.LABELS:
                return Linear(self.spec.hidden_size, len(self.spec.labels), bias=False)
            case Head.NONE:
                return nn.Identity()

    @staticmethod
    def num_embeddings(spec: ModelSpec) -> int:
        return spec.vocab_size

    @abstractmethod
    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        """Final hidden states [T, d] of tokens `input_ids` [T] at absolute `positions` [T].

        Behind them, in the same rows, the outputs of the layers that `tap` named.
        """

    def tap(self, layers: Sequence[int]) -> None:
        """Return the outputs of these layers too, also in graphs captured from now on."""
        raise UnsupportedModel(f"{self.spec.architecture} shows no hidden states to an EAGLE-3 head")

    def layer_attention(self) -> list[LayerAttention]:
        """How each layer with attention attends, with this rank's heads."""
        spec = self.spec
        return [
            LayerAttention(
                scale=spec.attention_scale,
                window=spec.window(layer),
                causal=not spec.attention.bidirectional,
                soft_cap=spec.attention.soft_cap,
                sinks=self.sinks(layer),
                source=spec.attention.source(layer),
                latent_rank=None if spec.latent is None else spec.latent.rank,
                chosen=None if spec.latent is None or (of := spec.latent.indexer) is None else of.chosen,
            )
            for layer in spec.attention_layers
        ]

    def sinks(self, layer: int) -> Tensor | None:
        """Sinks of a layer that has them, [heads] float32."""
        return None

    def expect(self, rows: int) -> None:
        """Set how many rows of the next forward pass are tokens; the rest is padding of a CUDA graph.

        Enqueued on the device, for models that have experts.
        """
        if self.spec.experts is not None:
            self._live_rows.expect(rows)

    def adapt(self, rows: Tensor | None) -> None:
        """Set the adapters of the next forward pass. `rows`: see `Batch`; None: no row has an adapter."""
        if self.adapter_rows is not None:
            self.adapter_rows.use(None if rows is None else rows[-1])

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of all vocabulary entries, [S, vocab] in the model's dtype, for rows `hidden` [S, d]; or of
        all labels.

        Ranks other than the leader return the scores of their own part of the vocabulary.
        """
        scores: Tensor = self.head(hidden)
        if self.spec.logit_scale != 1.0:
            scores = scores * self.spec.logit_scale
        cap = self.spec.logit_soft_cap
        return scores if cap is None else torch.tanh(scores / cap).mul_(cap)

    def pack(self) -> None:
        """Pack all weights for speed, one at a time. A head tied to the embedding becomes a copy."""
        for module in self.modules():
            if isinstance(module, Packable):
                module.pack()

    def pack_tied_head(self) -> None:
        """Pack the head again if it is tied, since the embedding has changed."""
        if not isinstance(self.head, Linear) or not self.spec.tied_embeddings:
            return
        with torch.device("meta"):
            head = self.head.unpacked()
        mine = self.shard.vocabulary(self.spec.vocab_size)
        head.weight = nn.Parameter(self.embed.weight[mine.start : mine.stop], requires_grad=False)
        head.pack()
        self.head.refill(head)

    @abstractmethod
    def weight_table(self) -> WeightTable:
        """Which modules of the checkpoint fill which modules of this model."""

    def head_table(self) -> WeightTable:
        """The source of the head's weight, if it has one of its own."""
        if self.spec.head is Head.LABELS:
            return {"score": ParamSlice("head")}
        needs_one = self.spec.head is Head.VOCABULARY and not self.spec.tied_embeddings
        return {"lm_head": self.head_param()} if needs_one else {}

    def head_param(self) -> ParamSlice:
        """The source of an untied head's weight."""
        vocab = self.spec.vocab_size
        return ParamSlice("head", cut=Cut(0, vocab, (self.shard.vocabulary(vocab),)))

    def unstacked(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        """The checkpoint's tensor as those of `weight_table`: several if it stacks those of all experts."""
        yield name, tensor

    def source_name(self, name: str) -> str:
        """The name in `weight_table` of the checkpoint's tensor `name`; checkpoints vary in spelling."""
        return name

    def reads(self, name: str) -> bool:
        """Whether the checkpoint's tensor `name` is read at all: others are not even looked at."""
        return True

    def ignores(self, name: str) -> bool:
        """Whether the checkpoint's tensor `name` is not needed by this model."""
        unused = () if self.spec.quantization is None else self.spec.quantization.unused
        headless = self.spec.tied_embeddings or self.spec.head is not Head.VOCABULARY
        head = headless and name.startswith("lm_head.")
        return head or self._is_elsewhere(name) or name.endswith((*unused, *_KV_SCALES))

    def is_empty(self, name: str, tensor: Tensor) -> bool:
        """Whether this is a bias of zeros of a model without it: AutoGPTQ at first gave every layer one."""
        quantization = self.spec.quantization
        of_gptq = quantization is not None and quantization.packing is Packing.GPTQ
        return of_gptq and name.endswith(".bias") and not tensor.any()

    def check_ignored(self, name: str, tensor: Tensor) -> None:
        """Raises WeightsError if a tensor that is ignored says that weights are not what config.json says."""
        quantization = self.spec.quantization
        if quantization is None or not name.endswith(".g_idx"):
            return
        groups = torch.arange(len(tensor)) // (quantization.group or len(tensor))
        if not torch.equal(tensor.long(), groups):
            raise WeightsError(
                f"{name} reorders input features (act-order), but config.json says desc_act=false; use a"
                " checkpoint without act-order"
            )

    def _is_elsewhere(self, name: str) -> bool:
        """Whether the tensor is of an expert that other ranks hold."""
        experts, of_expert = self.part.experts, _OF_EXPERT.search(name)
        if experts is None or of_expert is None:
            return False
        return int(of_expert[1]) in set(range(experts.count)) - set(experts.held)
