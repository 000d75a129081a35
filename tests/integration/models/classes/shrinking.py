"""Tiny configs of every class of transformers that generates text, from the default of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from engine.modeling.general.classes import class_of

LAYERS: Final = 4
_HIDDEN, _HEADS, _HEAD_DIM = 64, 4, 16

_SIZES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "word_embed_proj_dim"), _HIDDEN),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "mlp_dim", "dim_ff", "intermediate_size_mlp", "mlp_hidden_size"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "depth", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), _HEADS),
    **dict.fromkeys(
        ("decoder_attention_heads", "encoder_attention_heads", "swa_num_attention_heads"), _HEADS
    ),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("swa_num_key_value_heads", "kv_n_heads", "num_attention_groups"), 2),
    **dict.fromkeys(("head_dim", "attention_head_dim", "global_head_dim", "swa_head_dim"), _HEAD_DIM),
    **dict.fromkeys(("kv_channels", "query_pre_attn_scalar", "qk_nope_head_dim", "mamba_d_head"), _HEAD_DIM),
    **dict.fromkeys(("qk_rope_head_dim", "index_head_dim", "sliding_window", "attention_window_size"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "compress_rope_dim"), 16),
    **dict.fromkeys(("v_head_dim", "swa_v_head_dim"), 12),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 8),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"), 2
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_size"), 40),
    **dict.fromkeys(("shared_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "num_dense_layers"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"), 512),
    **dict.fromkeys(("out_hidden_size", "text_hidden_size"), _HIDDEN),
    "n_shared_experts": 1,
    "index_topk": 16,
    "rotary_dim": 8,
    "d_head": _HEAD_DIM,
    "qk_head_dim": 24,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 0,
    "attention_chunk_size": 512,
}
_MISSING: Final = (
    "head_dim",
    "num_key_value_heads",
    "num_experts_per_tok",
    "n_routed_experts",
    "n_shared_experts",
)
"""Sizes that some defaults leave out, without which their classes fail."""
_STD: Final = 0.12
_VOCABULARY: Final = 260
_LAST_TOKENS: Final = 240
"""Special tokens of configs are above this, and prompts below."""

_OTHERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
    },
    "chameleon": {"vocabulary_map": {"<image>": 250}},
    "dbrx": {"attn_config": {"rope_theta": 500_000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "emu3": {"vocabulary_map": {"<image>": 250}},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0, "mrope_section": [3, 3, 2]}
    },
    "glm_moe_dsa": {"indexer_types": ["full", "shared", "full", "shared"]},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "mistral4": {"qk_nope_head_dim": 8, "head_dim": 16},  # half of it is rotated
    "nemotron_h": {  # transformers applies the smallest step to prompts only
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "time_step_min": 1e-9,
    },
    "qwen2_5_omni_thinker": {"vision_start_token_id": 250},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 250},
}
"""Fields of configs, by their type, whose shrunk default no class takes: as published ones have them."""

_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "granitemoehybrid": ("linear_attention", "full_attention", "linear_attention", "full_attention"),
    "lfm2": ("conv", "full_attention", "conv", "full_attention"),
    "minimax_m3_vl_text": ("full_attention", "minimax_m3_sparse", "full_attention", "minimax_m3_sparse"),
}
"""Kinds of layers of published checkpoints, where the default of a class has one kind."""


def classes() -> dict[str, str]:
    """Model type by the name of its class: one of each class that generates text."""
    types: dict[str, str] = {}
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        for model_type, name in mapping.items():
            if name not in types or _nearness(model_type, name) > _nearness(types[name], name):
                types[name] = model_type
    return types


def _nearness(model_type: str, name: str) -> int:
    """How well a model type fits to a class, which several have."""
    own = name.lower().startswith(model_type.replace("_", "").replace("-", "").removesuffix("text"))
    return 2 * own + (model_type.endswith("_text") and name.endswith("ForCausalLM"))


def tiny_config(model_type: str) -> PreTrainedConfig:
    """The default config of a type, with few and narrow layers of each kind."""
    cls = CONFIG_MAPPING[model_type]
    fields = cls().to_dict()
    return cls.from_dict(_shrunk(fields))


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A model with random weights in float32, large enough that answers vary."""
    torch.manual_seed(0)
    model = class_of(config)(config)
    model.set_attn_implementation("eager")
    model.float().train(mode=False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, 0.0, _STD)
    return model


def _shrunk(fields: Mapping[str, Any]) -> dict[str, Any]:
    layers = next(
        (fields[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if fields.get(name)), 0
    )
    small: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(name, str) and name not in ("id2label", "label2id"):
            small[name] = _small(name, value, layers)
    if kinds := _KINDS.get(str(fields.get("model_type"))):
        small["layer_types"] = list(kinds)
    if "is_decoder" in small and not fields.get("is_encoder_decoder"):
        small["is_decoder"] = True
    if "qk_rope_head_dim" in small:  # latent attention: as many key heads as query heads
        small["num_key_value_heads"] = _HEADS
        small["head_dim"] = small["qk_rope_head_dim"]
    return small | _OTHERS.get(str(fields.get("model_type")), {})


def _small(name: str, value: Any, layers: int) -> Any:
    if name == "per_layer_config" and value:
        return {LAYERS - 1: _shrunk(next(iter(value.values())))}
    if isinstance(value, Mapping) and not all(isinstance(key, str) for key in value):
        return value
    if isinstance(value, Mapping):
        return _small_rope(value) if name.startswith("rope_") else _shrunk(value)
    if isinstance(value, list | tuple) and len(value) == layers and layers:
        return _some(list(value))
    if value is None and name in _MISSING:
        return _SIZES[name]
    if name in _SIZES and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return min(value, _SIZES[name]) if name in ("n_group", "first_k_dense_replace") else _SIZES[name]
    if name == "vocab_size" or (name.startswith("vocab_size") and isinstance(value, int)):
        return _VOCABULARY
    if name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
        return _LAST_TOKENS + value % 20
    return value


def _some(values: list[Any]) -> list[Any]:
    """LAYERS of the values, of each kind one if possible."""
    few = values[:LAYERS]
    kinds = [value for value in values if value not in few]
    if kinds:
        few[-1] = kinds[0]
    return few


def _small_rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    small = {
        name: _small_rope(value) if isinstance(value, Mapping) else value for name, value in rope.items()
    }
    if "rope_type" in small:  # classes that divide heads so have the sizes of large heads as defaults
        rotated = int(_HEAD_DIM // 2 * small.get("partial_rotary_factor", 1.0))
        small["mrope_section"] = [rotated - 2 * (rotated // 3), rotated // 3, rotated // 3]
    for name in ("short_factor", "long_factor"):
        if name in small:
            small[name] = small[name][: _HEAD_DIM // 2]
    return small
