"""The architectures of GGUF files that are converted, as tables of names.

llama.cpp's own converter, convert_hf_to_gguf.py, read backwards. Models whose tensors it rearranges are in
rearranged.py, except Llama's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy.typing as npt
from gguf import GGMLQuantizationType, ReaderTensor

from engine.modeling.loader.gguf.metadata import DIVISORS, Metadata

_GEMMA2_27B_LAYERS: Final = 46
_GEMMA3_27B_LAYERS: Final = 62
"""The one size whose scores are scaled by the width of the model per head; GGUF files do not state it."""
_FACTORS: Final = "rope_factors_{}.weight"
"""LongRoPE's divisors, for long and for short contexts."""

MODULES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
"""Outside of layers."""

ATTENTION: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
}
MLP: Final = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
EXPERTS: Final = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
SHARED_EXPERT: Final = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_SHARED_EXPERTS: Final = {
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_DENSE: Final = ATTENTION | MLP
_GEMMA: Final = {
    **_DENSE,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
LATENT: Final = {
    **_DENSE,
    **EXPERTS,
    **_SHARED_EXPERTS,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.kv_b_proj",
}

MERGED: Final = (
    frozenset({"attn_q", "attn_k", "attn_v"}),
    frozenset({"ffn_gate", "ffn_up"}),
    frozenset({"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps"}),
    frozenset({"ffn_gate_shexp", "ffn_up_shexp"}),
    frozenset({"attn_qkv", "attn_gate"}),
    frozenset({"ssm_alpha", "ssm_beta"}),
)
"""Linear parts of a layer that have one format: those that are computed as one, and all of its experts."""
_ALONE: Final = ("attn_output", "ffn_down", "ffn_down_shexp", "ssm_out", "inp_gate", "proj")
_OF_LATENTS: Final = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa")
LINEAR: Final = frozenset({*_ALONE, *_OF_LATENTS, "per_layer_model_proj", "attn_kv_b", "attn_k_b"}).union(
    *MERGED
)
DEQUANTIZED: Final = frozenset({"attn_kv_b", "attn_k_b"})
"""Linear parts that are loaded as values."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the folder, under its name in a file."""

    name: str
    value: npt.NDArray[Any]
    kind: GGMLQuantizationType | None = None
    """Type of its blocks, if it has any: `value` has their bytes."""


Tensors: TypeAlias = Mapping[str, ReaderTensor]


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    model_class: str
    """The class of config.json."""
    model_type: str
    modules: Mapping[str, str] = field(default_factory=lambda: _DENSE)
    """Names of the parts of a layer; with the number of an expert where all are stacked."""
    fields: Callable[[Metadata, int], Mapping[str, Any]] = lambda metadata, head_dim: {}
    """Further fields of config.json."""
    pairs_features: bool = False
    """Whether features of queries and keys that rotate together are neighbours."""
    mxfp4_experts: bool = False
    """Whether experts are 4-bit floats, as in the original checkpoint; see mxfp4.py."""
    whole_norms: bool = False
    """Whether the weights of norms are factors, where Hugging Face has their difference to 1."""
    rearrange: Callable[[Metadata, ReaderTensor, Tensors], Iterator[Part] | None] = lambda *_: None
    """What a tensor stands for in Hugging Face's order; None: itself."""
    not_coded: Callable[[Metadata, Tensors], frozenset[str]] = lambda *_: frozenset()
    """Tensors whose blocks do not survive this order."""


_YARN: Final = {
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "attention_factor": "yarn_attn_factor",
}


def rope(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": metadata.model("rope.freq_base") or 10000.0,
    }
    if divisors := metadata.values(DIVISORS):  # the only kind that takes them, here the same for all contexts
        same = {"short_factor": divisors, "long_factor": divisors, "attention_factor": 1.0}
        found |= {"rope_type": "longrope", **same}
    if (rotated := metadata.model("rope.dimension_count")) not in (None, head_dim):
        found["partial_rotary_factor"] = rotated / head_dim
    if (scaling := metadata.model("rope.scaling.type")) not in (None, "none"):
        found |= {"rope_type": scaling, "factor": metadata.need("rope.scaling.factor")}
    if original := metadata.model("rope.scaling.original_context_length"):
        found["original_max_position_embeddings"] = original
    for name, key in _YARN.items():
        if (value := metadata.model(f"rope.scaling.{key}")) is not None:
            found[name] = value
    return found


def _query_scalar(metadata: Metadata, head_dim: int, largest: int) -> int:
    """What scores are divided by the root of. `largest`: layers of the size that differs."""
    if metadata.need("block_count") != largest:
        return head_dim
    return int(metadata.need("embedding_length") // metadata.need("attention.head_count"))


def _gemma2(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _query_scalar(metadata, head_dim, _GEMMA2_27B_LAYERS),
        "attn_logit_softcapping": metadata.need("attn_logit_softcapping"),
        "final_logit_softcapping": metadata.need("final_logit_softcapping"),
    }


def _gemma3(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": metadata.model("rope.freq_base_swa") or 10000.0}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _query_scalar(metadata, head_dim, _GEMMA3_27B_LAYERS),
        "rope_parameters": {"full_attention": rope(metadata, head_dim), "sliding_attention": local},
    }


def _phi3(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    short, long = (metadata.values(_FACTORS.format(length)) for length in ("short", "long"))
    if not long:
        return {}
    original = metadata.need("rope.scaling.original_context_length")
    factors = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    if attention := metadata.model("rope.scaling.attn_factor"):
        factors["attention_factor"] = attention
    return {
        "rope_parameters": rope(metadata, head_dim) | factors,
        "original_max_position_embeddings": original,
    }


def qwen_experts(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    return {
        "num_experts": metadata.need("expert_count"),
        "num_experts_per_tok": metadata.need("expert_used_count"),
        "moe_intermediate_size": metadata.need("expert_feed_forward_length"),
        # llama.cpp knows this by the architecture; files of other models of the same one are refused.
        "norm_topk_prob": metadata.architecture == "qwen3moe",
        "shared_expert_intermediate_size": metadata.model("expert_shared_feed_forward_length"),
    }


def _glm4_moe(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    return {
        "n_routed_experts": metadata.need("expert_count"),
        "n_shared_experts": metadata.need("expert_shared_count"),
        "num_experts_per_tok": metadata.need("expert_used_count"),
        "moe_intermediate_size": metadata.need("expert_feed_forward_length"),
        "first_k_dense_replace": metadata.need("leading_dense_block_count"),
        "routed_scaling_factor": metadata.model("expert_weights_scale") or 1.0,
        "norm_topk_prob": metadata.model("expert_weights_norm") is not False,
        "n_group": metadata.model("expert_group_count") or 1,
        "topk_group": metadata.model("expert_group_used_count") or 1,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in metadata.shapes,
        "attention_bias": "blk.0.attn_q.bias" in metadata.shapes,
        # The layers that predict a token more are counted too; they are not converted.
        "num_hidden_layers": num_layers(metadata),
        "partial_rotary_factor": metadata.need("rope.dimension_count") / head_dim,
    }


def _gpt_oss(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    # The file states the factor alone; these are those of all gpt-oss models.
    yarn = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    return {
        "num_local_experts": metadata.need("expert_count"),
        "num_experts_per_tok": metadata.need("expert_used_count"),
        "intermediate_size": metadata.need("expert_feed_forward_length"),
        "attention_bias": True,
        "rope_parameters": rope(metadata, head_dim) | yarn,
        "quantization_config": {"quant_method": "mxfp4"},
    }


def num_layers(metadata: Metadata) -> int:
    """Layers of the model, without those that predict further tokens."""
    return int(metadata.need("block_count") - (metadata.model("nextn_predict_layers") or 0))


ARCHITECTURES: Final[Mapping[str, GgufArchitecture]] = {
    "llama": GgufArchitecture("LlamaForCausalLM", "llama", pairs_features=True),
    "qwen2": GgufArchitecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": GgufArchitecture("Qwen3ForCausalLM", "qwen3"),
    "gemma2": GgufArchitecture("Gemma2ForCausalLM", "gemma2", _GEMMA, _gemma2, whole_norms=True),
    "gemma3": GgufArchitecture("Gemma3ForCausalLM", "gemma3_text", _GEMMA, _gemma3, whole_norms=True),
    "phi3": GgufArchitecture(
        "Phi3ForCausalLM",
        "phi3",
        _DENSE | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        _phi3,
    ),
    "qwen2moe": GgufArchitecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        ATTENTION | EXPERTS | SHARED_EXPERT,
        qwen_experts,
    ),
    "qwen3moe": GgufArchitecture("Qwen3MoeForCausalLM", "qwen3_moe", ATTENTION | EXPERTS, qwen_experts),
    "glm4moe": GgufArchitecture(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        _DENSE | EXPERTS | _SHARED_EXPERTS | {"post_attention_norm": "post_attention_layernorm"},
        _glm4_moe,
    ),
    "gpt-oss": GgufArchitecture(
        "GptOssForCausalLM",
        "gpt_oss",
        ATTENTION
        | {
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
        },
        _gpt_oss,
        mxfp4_experts=True,
    ),
}
"""Keyed by `general.architecture`, which says llama in files of Mistral and SmolLM2 too."""
