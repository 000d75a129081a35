"""The shape and options of a model, read from a Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.kv_groups import KVGroup, KVHeads, group_layers, page_features
from engine.model_config.architectures import is_lacking
from engine.model_config.config_fields import Config
from engine.model_config.config_file import dtype_of, eos_token_ids, of_the_text, read_configs
from engine.model_config.eagle_spec import EagleSpec
from engine.model_config.errors import UnsupportedModel
from engine.model_config.family_fields import family_fields
from engine.model_config.general import general_fields
from engine.model_config.model_impl import ModelImpl
from engine.model_config.mtp_spec import MtpSpec
from engine.model_config.parts.attention_spec import AttentionSpec
from engine.model_config.parts.encoder_spec import EncoderSpec
from engine.model_config.parts.expert_spec import ExpertSpec
from engine.model_config.parts.general_spec import GeneralSpec
from engine.model_config.parts.latent_spec import LatentSpec
from engine.model_config.parts.layer_options import Activation, Head, Norms, QKNorm
from engine.model_config.parts.per_layer_spec import PerLayerSpec
from engine.model_config.parts.recurrent_spec import RecurrentSpec
from engine.model_config.parts.rope_spec import RopeSpec
from engine.model_config.parts.vision_spec import VisionSpec
from engine.model_config.quantization import ONLINE_FP8, Quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape and options of one transformer: a decoder without cross-attention, or an encoder."""

    architecture: str
    """The Hugging Face class name, such as "LlamaForCausalLM"."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    """Longest context, prompt and output together, that the model supports."""
    norm_eps: float
    rope: RopeSpec | None
    """None: positions are learned embeddings."""
    window_rope: RopeSpec | None = None
    """Rotation of layers that have a window; None: the same."""
    unrotated_layers: frozenset[int] = frozenset()
    """Layers whose queries and keys are not rotated."""
    interleaved_rotation: bool = False
    """Whether checkpoints have the features of a head that are rotated together side by side."""
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether attention's output projection has a bias."""
    mlp_bias: bool = False
    gated_mlp: bool = True
    """Whether the MLP has a gate, and so three matrices, or only two."""
    activation: Activation = Activation.SILU
    """Activation of gated MLPs and of experts."""
    norms: Norms = Norms.BEFORE
    centred_norms: bool = False
    """Whether checkpoints store the difference of a norm's weight to 1."""
    embedding_scale: float = 1.0
    """Factor of the embeddings where they enter the first layer."""
    residual_scale: float = 1.0
    """Factor of the outputs of attention and MLP where they are added up."""
    logit_scale: float = 1.0
    """Factor of the logits."""
    logit_soft_cap: float | None = None
    """Logits s become logit_soft_cap * tanh(s / logit_soft_cap)."""
    qk_norm: QKNorm | None = None
    output_gate: bool = False
    """Whether attention's output is multiplied by the sigmoid of a gate, a part of the query projection."""
    recurrent: RecurrentSpec | None = None
    """Recurrent states in place of the attention of some layers."""
    attention: AttentionSpec = field(default_factory=AttentionSpec)
    lone_mlps: frozenset[int] | None = None
    """Layers that are an MLP or experts alone, the others attention or a state alone; None: all have both."""
    wide_mlps: frozenset[int] = frozenset()
    """Layers whose MLP has twice the `intermediate_size`."""
    per_layer: PerLayerSpec | None = None
    """Embeddings that enter every layer."""
    latent: LatentSpec | None = None
    """Latent attention in all layers; `num_kv_heads` and `head_dim` are those of the halves of its rows."""
    experts: ExpertSpec | None = None
    """Experts in place of the MLPs, `intermediate_size` being that of the layers that keep one."""
    eagle: EagleSpec | None = None
    """A head that drafts from the hidden states of another model; it is no model by itself."""
    mtp: MtpSpec | None = None
    """A head for multi-token prediction that the checkpoint has, or may have, beside the model."""
    is_mtp_head: bool = False
    """Whether this is the shape of that head, which is no model by itself."""
    general: GeneralSpec | None = None
    """Served by transformers' modules, which have shown this; None: by a family of Baton's."""
    encoder: EncoderSpec | None = None
    """BERT's embeddings of positions and kinds of tokens."""
    vision: VisionSpec | None = None
    """Images, of models that have them; None: it is served as a model of text."""
    head: Head = Head.VOCABULARY
    labels: tuple[str, ...] = ()
    """Names of what a head for labels scores."""
    quantization: Quantization | None = None
    """Format of the linear layers' weights; None: they are stored in `dtype`."""
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    """Precision of the stored weights."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            heads = f"num_attention_heads={self.num_heads}, num_key_value_heads={self.num_kv_heads}"
            raise UnsupportedModel(f"{heads}: query heads must divide evenly among the key heads")
        windows = self.attention.windows
        other = self.attention.other_heads
        if other is not None and self.num_heads % other.heads.count:
            heads = f"{self.num_heads} query heads, {other.heads.count} key heads in some layers"
            raise UnsupportedModel(f"{heads}: query heads must divide evenly among the key heads")
        if windows and len(windows) != self.num_layers:
            raise UnsupportedModel(
                f"{len(windows)} layers have a window or none, of {self.num_layers} layers"
            )

    @property
    def impl(self) -> ModelImpl:
        """Whose modules run the model."""
        return ModelImpl.BATON if self.general is None else ModelImpl.TRANSFORMERS

    @property
    def words_of_kinds(self) -> int | None:
        """Ids of each kind of tokens; None: there is one kind."""
        kinds = 1 if self.encoder is None else self.encoder.token_types
        return None if kinds == 1 else self.vocab_size // kinds

    @property
    def q_size(self) -> int:
        """Features of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Features of all key heads; the value heads have as many."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        """Layers whose KV shares a block table, numbered among those with attention."""
        layers, other = self.kv_layers, self.attention.other_heads
        heads = [] if other is None else [self.kv_heads(layer) for layer in layers]
        widths = [] if other is None else [other.widths[layer in other.layers] for layer in layers]
        every = self.attention.bidirectional  # all pages are read while a prompt is computed
        windows = [None if every else self.window(layer) for layer in layers]
        groups = group_layers(windows, self.max_position, heads, widths)
        return tuple(replace(group, latent=self.latent is not None) for group in groups)

    def kv_heads(self, layer: int) -> KVHeads:
        other = self.attention.other_heads
        if other is not None and layer in other.layers:
            return other.heads
        return KVHeads(self.num_kv_heads, self.head_dim)

    def of_layer(self, layer: int) -> ModelSpec:
        """This model with the sizes of one of its layers in place of those of most layers."""
        heads, double = self.kv_heads(layer), layer in self.wide_mlps
        if heads == KVHeads(self.num_kv_heads, self.head_dim) and not double:
            return self
        inner = self.intermediate_size * (2 if double else 1)
        return replace(self, num_kv_heads=heads.count, head_dim=heads.dim, intermediate_size=inner)

    def kv_token_bytes(self, value_bytes: float) -> float:
        """Bytes of a token's KV in the pages of all groups, with the layers by which they are padded."""
        groups = self.kv_groups
        heads = [group.heads or KVHeads(self.num_kv_heads, self.head_dim) for group in groups]
        return len(groups) * page_features([len(group.layers) for group in groups], heads) * value_bytes

    @property
    def parameters(self) -> int:
        """Weights of all matrices. Norms and biases, which are few, count nowhere."""
        features = 0 if self.experts is None else self.experts.features(self.hidden_size)
        return self._layer_parameters(features) + self._embeddings

    @property
    def active_parameters(self) -> int:
        """Weights that one token is multiplied with: its experts, the other layers, the head."""
        features = 0 if self.experts is None else self.experts.active_features(self.hidden_size)
        return self._layer_parameters(features) + self.vocab_size * self.hidden_size

    def weight_bytes(self, value_bytes: int) -> float:
        """Bytes of all matrices on a GPU, where those that are not quantized have values of `value_bytes`."""
        embeddings = self._embeddings
        experts = 0 if self.experts is None else self.experts.count * self.expert_parameters
        others = self.parameters - embeddings - experts
        in_layers = others * self.bytes_per_dense_weight(value_bytes)
        return in_layers + experts * self.bytes_per_weight(value_bytes) + embeddings * value_bytes

    def bytes_per_weight(self, value_bytes: int) -> float:
        """Bytes per weight of the routed experts, or of all layer matrices if there are none."""
        stays = self.quantization is not None and self.quantization.stays_on_gpus
        return self.quantization.bytes_per_weight if self.quantization and stays else value_bytes

    def bytes_per_dense_weight(self, value_bytes: int) -> float:
        """Bytes per weight of the layers' other matrices."""
        attention = f"model.layers.{self.attention_layers[-1]}.{self.attention.name}.o_proj"
        format = None if self.quantization is None else self.quantization.of(attention)
        return format.bytes_per_weight if format is not None and format.stays_on_gpus else value_bytes

    def quantized(self, quantization: str | None) -> ModelSpec:
        """This model with weights that are quantized at load: "fp8", or None to take them as they are.

        Raises UnsupportedModel if the checkpoint is quantized already.
        """
        if quantization is None:
            return self
        if quantization != "fp8":
            raise UnsupportedModel(f"--quantization {quantization} is unknown; use fp8")
        if self.quantization is not None:
            stored = self.quantization.format.value
            raise UnsupportedModel(
                f"--quantization fp8 needs unquantized weights, but these are {stored} already; leave it out"
            )
        return replace(self, quantization=ONLINE_FP8)

    def without_vocabulary(self) -> ModelSpec:
        """This model for embeddings, which need no language-model head."""
        return self if self.head is not Head.VOCABULARY else replace(self, head=Head.NONE)

    def with_expert_parallel(self, groups: int) -> ModelSpec:
        """This model with experts that are distributed over groups of ranks. Raises UnsupportedModel."""
        if groups == 1:
            return self
        if self.experts is None:
            raise UnsupportedModel(
                f"--expert-parallel-size {groups}: this model has no experts; leave it out"
            )
        return replace(self, experts=replace(self.experts, parallel=groups))

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert in all layers that have experts."""
        if self.experts is None:
            return 0
        size = (self.experts.latent or self.hidden_size) * self.experts.intermediate_size
        return self._routed_layers * (3 if self.gated_mlp else 2) * size

    @property
    def widest_mlp(self) -> int:
        """Features of the MLP that takes the most activations of a token."""
        routed = 0 if self.experts is None else self.experts.active_features(self.hidden_size)
        return max(routed, self.intermediate_size if self._dense_layers else 0)

    @property
    def _routed_layers(self) -> int:
        return 0 if self.experts is None else self.num_layers - len(self.experts.dense_layers)

    @property
    def _dense_layers(self) -> int:
        """Layers with an MLP in place of experts."""
        mlps = self.num_layers if self.lone_mlps is None else len(self.lone_mlps)
        return mlps - self._routed_layers

    @property
    def rotary_dim(self) -> int:
        """Features of a head of which a share is rotated."""
        return self.head_dim if self.latent is None else self.latent.rotated

    @property
    def query_dim(self) -> int:
        """Features of a head's queries, as attention takes them."""
        return self.head_dim if self.latent is None else self.latent.row

    @property
    def value_dim(self) -> int:
        """Features of a head's results of attention."""
        return self.head_dim if self.latent is None else self.latent.rank

    @property
    def attention_scale(self) -> float:
        """Factor of the products of queries and keys."""
        return self.head_dim**-0.5 if self.attention.scale is None else self.attention.scale

    def rope_of(self, layer: int) -> RopeSpec | None:
        """How this layer rotates queries and keys; None: not at all."""
        if layer in self.unrotated_layers:
            return None
        other = self.attention.other_heads
        windowed = self.window(layer) is not None if other is None else layer not in other.layers
        return self.window_rope if windowed and self.window_rope is not None else self.rope

    @property
    def rearranges_heads(self) -> bool:
        """Whether queries and keys have their features in another order than checkpoints have."""
        rotated = self.head_dim if self.rope is None else self.rope.rotated_features(self.head_dim)
        return self.interleaved_rotation or rotated != self.head_dim

    def for_context(self, longest: int) -> ModelSpec:
        """This model for requests of up to `longest` tokens, by which LongRoPE chooses its angles."""
        if self.general is not None:
            return replace(self, general=replace(self.general, context=longest))
        return self if self.rope is None else replace(self, rope=self.rope.for_context(longest))

    def window(self, layer: int) -> int | None:
        """How many tokens a token attends to in this layer, itself included; None: all of its context."""
        return self.attention.window(layer)

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """Layers with keys and values of their own; the first of those with attention."""
        return tuple(layer for layer in self.attention_layers if self.attention.source(layer) is None)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers with attention; the others have a recurrent state, or are an MLP."""
        others = frozenset() if self.recurrent is None else self.recurrent.layers
        others |= self.lone_mlps or frozenset()
        return tuple(layer for layer in range(self.num_layers) if layer not in others)

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer not in self.experts.dense_layers

    @property
    def _embeddings(self) -> int:
        """Weights of the embeddings, and of the head if it has its own."""
        entries = (1 if self.tied_embeddings else 2) * self.vocab_size * self.hidden_size
        return entries + (0 if self.per_layer is None else self.num_layers * self.per_layer.embedding)

    def _mixer_features(self, layer: int) -> int:
        """Features of a layer's queries, output projection, keys and values."""
        heads = self.kv_heads(layer)
        queries = (3 if self.output_gate else 2) * self.num_heads * heads.dim
        return queries + (len(self.attention.projected(layer)) - 1) * heads.features

    def _layer_parameters(self, expert_features: int) -> int:
        """Weights of all layers, of which those with experts have an MLP of `expert_features`."""
        if self.general is not None:
            return self.general.parameters
        routed = self._routed_layers
        dense = (self._dense_layers + len(self.wide_mlps)) * self.intermediate_size
        mlps = (3 if self.gated_mlp else 2) * (dense + routed * expert_features)
        routers = 0 if self.experts is None else routed * self.experts.count
        attended, latent = self.attention_layers, 0
        mixers = sum(self._mixer_features(layer) for layer in attended if self.latent is None)
        if self.latent is not None:
            latent = self.latent.weights(self.hidden_size, self.num_heads, len(attended))
        if self.recurrent is not None:
            mixers += len(self.recurrent.layers) * self.recurrent.weights
        gates = 0 if self.per_layer is None else 3 * self.num_layers * self.per_layer.features
        return latent + self.hidden_size * (mixers + mlps + routers + gates)

    @classmethod
    def from_folder(cls, folder: Path, impl: ModelImpl = ModelImpl.AUTO) -> ModelSpec:
        """Read config.json, generation_config.json and, in NVIDIA's older checkpoints, hf_quant_config.json.

        Raises:
            UnsupportedModel: Baton does not support this model; the message says why.
        """
        config, generation = read_configs(folder)
        return cls.from_config(config, generation, impl)

    @classmethod
    def from_config(
        cls, config: Config, generation: Config | None = None, impl: ModelImpl = ModelImpl.AUTO
    ) -> ModelSpec:
        """Interpret a parsed config.json. Raises UnsupportedModel."""
        if impl is ModelImpl.TRANSFORMERS:
            return cls._from_transformers(config, generation or {})
        try:
            return cls(**family_fields(config, generation or {}))
        except UnsupportedModel as error:
            if impl is ModelImpl.BATON or is_lacking(config):
                raise
            try:
                return cls._from_transformers(config, generation or {})
            except UnsupportedModel as general:
                raise UnsupportedModel(
                    f"{error}; nor does it run with transformers' modules: {general}"
                ) from None

    @classmethod
    def _from_transformers(cls, config: Config, generation: Config) -> ModelSpec:
        return cls.general_of(general_fields(config), config, generation)

    @classmethod
    def general_of(
        cls, fields: dict[str, Any], config: Config, generation: Config | None = None
    ) -> ModelSpec:
        """The spec of a model that runs transformers' modules, from `general_fields`."""
        general: GeneralSpec = fields["general"]
        windows = tuple(layer.window for layer in general.layers)
        return cls(
            architecture=general.class_name,
            eos_token_ids=eos_token_ids(
                {"eos_token_id": general.eos, **of_the_text(config)}, generation or {}
            ),
            dtype=dtype_of(of_the_text(config)),
            attention=AttentionSpec(windows=windows if any(windows) else ()),
            **fields,
        )
