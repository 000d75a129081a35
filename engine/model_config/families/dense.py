"""Families without experts, and how each spells its shape in config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from engine.model_config.config_fields import Config, llama, require, windows
from engine.model_config.parts.attention_spec import AttentionSpec
from engine.model_config.parts.layer_options import Activation, Norms, QKNorm
from engine.model_config.parts.rope_spec import RopeSpec

GEMMA3_DEFAULTS: Final[dict[str, Any]] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "vocab_size": 262208,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
"""Defaults of Gemma 3's text configs, which leave out fields with these values."""


def qwen2(config: Config) -> dict[str, Any]:
    first = config.get("max_window_layers", 28)
    attention = AttentionSpec(windows=windows(config, lambda layer: layer >= first))
    return llama(config) | {"qkv_bias": True, "attention": attention}


def qwen3(config: Config) -> dict[str, Any]:
    bias = bool(config.get("attention_bias", False))
    return qwen2(config) | {"qkv_bias": bias, "qk_norm": QKNorm.HEAD}


def smollm3(config: Config) -> dict[str, Any]:
    every = config.get("no_rope_layer_interval", 4)
    layers = range(config["num_hidden_layers"])
    rotated = config.get("no_rope_layers") or [(layer + 1) % every for layer in layers]
    unrotated = frozenset(layer for layer in layers if not rotated[layer])
    attention = AttentionSpec(windows=windows(config, lambda layer: layer in unrotated))
    return llama(config) | {"unrotated_layers": unrotated, "attention": attention}


def phi3(config: Config) -> dict[str, Any]:
    return llama(config, partial_rotation=True)


def olmo2(config: Config) -> dict[str, Any]:
    return llama(config) | {"norms": Norms.AFTER, "qk_norm": QKNorm.ALL_HEADS}


def olmo3(config: Config) -> dict[str, Any]:
    # Scaling of the old format extends the layers without a window only.
    plain = config if config.get("rope_parameters") else {**config, "rope_scaling": None}
    return olmo2(config) | {
        "attention": AttentionSpec(windows=windows(config, lambda layer: bool((layer + 1) % 4))),
        "window_rope": RopeSpec.from_config(plain, layer_type="sliding_attention"),
    }


def gemma2(config: Config) -> dict[str, Any]:
    return _gemma(config, windows(config, lambda layer: layer % 2 == 0)) | {
        "logit_soft_cap": config.get("final_logit_softcapping", 30.0)
    }


def gemma3(config: Config) -> dict[str, Any]:
    """EmbeddingGemma is bidirectional, and its window is the number of tokens of both sides."""
    bidirectional = bool(config.get("use_bidirectional_attention"))
    if bidirectional and config.get("sliding_window"):
        config = {**config, "sliding_window": config["sliding_window"] // 2 + 1}
    every = config.get("sliding_window_pattern", 6)
    local = {"rope_theta": config.get("rope_local_base_freq", 10000.0)}
    nested = {"rope_parameters": config["rope_parameters"]} if config.get("rope_parameters") else {}
    uncapped = {"attn_logit_softcapping": None} | dict(config)
    fields = _gemma(uncapped, windows(config, lambda layer: bool((layer + 1) % every)))
    fields["attention"] = replace(fields["attention"], bidirectional=bidirectional)
    rope: RopeSpec = RopeSpec.from_config(config, layer_type="full_attention", theta=1_000_000.0)
    return fields | {
        "rope": rope,
        "window_rope": RopeSpec.from_config(local | nested, layer_type="sliding_attention"),
        "qk_norm": QKNorm.HEAD,
        "logit_soft_cap": config.get("final_logit_softcapping"),
    }


def seed_oss(config: Config) -> dict[str, Any]:
    return llama(config) | {"output_bias": bool(config.get("attention_out_bias", False))}


def granite(config: Config) -> dict[str, Any]:
    scale = float(config.get("attention_multiplier", 1.0))
    return llama(config) | {
        "attention": AttentionSpec(scale=scale),
        "embedding_scale": float(config.get("embedding_multiplier", 1.0)),
        "residual_scale": float(config.get("residual_multiplier", 1.0)),
        "logit_scale": 1.0 / config.get("logits_scaling", 1.0),
    }


def glm(config: Config) -> dict[str, Any]:
    fields = llama({"partial_rotary_factor": 0.5} | dict(config), partial_rotation=True)
    return fields | {"output_bias": False, "interleaved_rotation": True}


def glm4(config: Config) -> dict[str, Any]:
    return glm(config) | {"norms": Norms.BOTH}


def exaone4(config: Config) -> dict[str, Any]:
    """Where some layers have a window, the others are not rotated."""
    layers = range(config["num_hidden_layers"])
    every = config.get("sliding_window_pattern") or 4
    if isinstance(every, str):  # such as LLLG
        every = len(every)
    types = config.get("layer_types")
    slides = [types[layer] == "sliding_attention" if types else (layer + 1) % every != 0 for layer in layers]
    hybrid = config.get("sliding_window") is not None
    return llama(config) | {
        "norms": Norms.AFTER,
        "qk_norm": QKNorm.HEAD,
        "attention": AttentionSpec(windows=windows(config, lambda layer: slides[layer])),
        "unrotated_layers": frozenset(layer for layer in layers if hybrid and not slides[layer]),
    }


def ernie4_5(config: Config) -> dict[str, Any]:
    bias = bool(config.get("use_bias", False))
    return llama(config) | {
        "interleaved_rotation": True,
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
    }


def mistral3(config: Config) -> dict[str, Any]:
    """Ministral 3 scales queries by their position, by 1 up to the context before YaRN."""
    fields, rope = llama(config), config.get("rope_parameters") or {}
    if beta := rope.get("llama_4_scaling_beta"):
        original = rope["original_max_position_embeddings"]
        fields["rope"] = replace(fields["rope"], query_scaling=float(beta), original_max_position=original)
    return fields


def _gemma(config: Config, windows: tuple[int | None, ...]) -> dict[str, Any]:
    require(config, "hidden_activation", "gelu_pytorch_tanh")
    fields = llama({"tie_word_embeddings": True, "head_dim": 256, **config, "hidden_act": "silu"})
    attention = AttentionSpec(
        windows=windows,
        scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        soft_cap=config.get("attn_logit_softcapping", 50.0),
    )
    return fields | {
        "attention": attention,
        "activation": Activation.GELU,
        "norms": Norms.BOTH,
        "centred_norms": True,
        "embedding_scale": config["hidden_size"] ** 0.5,
    }


def gpt2(config: Config) -> dict[str, Any]:
    require(config, "activation_function", "gelu_new")
    require(config, "scale_attn_weights", True)
    require(config, "scale_attn_by_inverse_layer_idx", False)
    require(config, "add_cross_attention", False)
    hidden, heads = config["n_embd"], config["n_head"]
    return {
        "hidden_size": hidden,
        "intermediate_size": config.get("n_inner") or 4 * hidden,
        "num_layers": config["n_layer"],
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "max_position": config["n_positions"],
        "norm_eps": config["layer_norm_epsilon"],
        "rope": None,
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "gated_mlp": False,
    }
