"""Families with experts, and how each spells its shape in config.json."""

from __future__ import annotations

from typing import Any

from engine.model_config.config_fields import Config, llama, require, windows
from engine.model_config.families.dense import ernie4_5, qwen2, qwen3
from engine.model_config.mtp_spec import nextn
from engine.model_config.parts.attention_spec import AttentionSpec
from engine.model_config.parts.expert_spec import ExpertSpec, Scoring
from engine.model_config.parts.layer_options import Activation, QKNorm


def mixtral(config: Config) -> dict[str, Any]:
    experts = ExpertSpec(
        count=config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=config["intermediate_size"],
    )
    return llama(config) | {"experts": experts}


def minimax_m2(config: Config) -> dict[str, Any]:
    """Mixtral's names, sigmoid routing, and norms over all heads. Older files state `rotary_dim`."""
    if "rotary_dim" in config:
        config = {"partial_rotary_factor": config["rotary_dim"] / config["head_dim"]} | dict(config)
    require(config, "shared_intermediate_size", 0)
    experts = ExpertSpec(
        count=config.get("num_local_experts") or config["num_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=config["intermediate_size"],
        scoring=Scoring.SIGMOID,
        score_bias=True,
    )
    return llama(config, partial_rotation=True) | {"qk_norm": QKNorm.ALL_HEADS, "experts": experts}


def hy_v3(config: Config) -> dict[str, Any]:
    """DeepSeek's routing without groups, with norms of heads; by default the first layer has no experts."""
    require(config, "mlp_bias", False)
    layers = range(config["num_hidden_layers"])
    kinds = config.get("mlp_layer_types") or ["dense" if layer == 0 else "sparse" for layer in layers]
    size = config["moe_intermediate_size"]
    experts = ExpertSpec(
        count=config["num_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=size,
        scoring=Scoring.SIGMOID,
        scale=float(config["router_scaling_factor"]),
        score_bias=True,
        shared_size=size * config["num_shared_experts"],
        dense_layers=frozenset(layer for layer in layers if kinds[layer] == "dense"),
    )
    return llama(config) | {"qk_norm": QKNorm.HEAD, "experts": experts}


def qwen3_vl_moe(config: Config) -> dict[str, Any]:
    experts = qwen_experts(config, normalized=True, shared=False)
    return qwen3(config) | {"experts": experts}


def qwen2_moe(config: Config) -> dict[str, Any]:
    last = config.get("max_window_layers", 28)
    attention = AttentionSpec(windows=windows(config, lambda layer: layer % 2 == 0 and layer < last))
    bias = bool(config.get("qkv_bias", True))
    experts = qwen_experts(config, normalized=False, shared=True)
    return qwen2(config) | {"qkv_bias": bias, "experts": experts, "attention": attention}


def qwen3_moe(config: Config) -> dict[str, Any]:
    experts = qwen_experts(config, normalized=False, shared=False)
    return qwen3(config) | {"experts": experts, "attention": AttentionSpec(windows=windows(config))}


def qwen_experts(config: Config, *, normalized: bool, shared: bool) -> ExpertSpec:
    """`normalized`: unless config.json says; `shared`: whether there is a shared expert."""
    named, every = config.get("mlp_only_layers") or (), config.get("decoder_sparse_step", 1)
    layers = range(config["num_hidden_layers"])
    return ExpertSpec(
        count=config.get("num_experts") or config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=config["moe_intermediate_size"],
        normalized=bool(config.get("norm_topk_prob", normalized)),
        shared_size=config["shared_expert_intermediate_size"] if shared else 0,
        shared_gate=shared,
        dense_layers=frozenset(layer for layer in layers if layer in named or (layer + 1) % every),
    )


def olmoe(config: Config) -> dict[str, Any]:
    require(config, "clip_qkv", None)
    experts = ExpertSpec(
        count=config["num_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=config["intermediate_size"],
        normalized=bool(config.get("norm_topk_prob", False)),
    )
    return llama(config) | {"qk_norm": QKNorm.ALL_HEADS, "experts": experts}


def glm4_moe(config: Config) -> dict[str, Any]:
    norm = QKNorm.HEAD if config.get("use_qk_norm", False) else None
    defaults = {"partial_rotary_factor": 0.5, "first_k_dense_replace": 1, "n_shared_experts": 1}
    config = defaults | dict(config)
    normalized = bool(config.get("norm_topk_prob", True))
    return llama(config, partial_rotation=True) | {
        "output_bias": False,
        "qk_norm": norm,
        "experts": deepseek_experts(config, Scoring.SIGMOID, normalized=normalized, grouped=True),
        "mtp": nextn(config),
    }


def ernie4_5_moe(config: Config) -> dict[str, Any]:
    require(config, "use_bias", False)
    size, layers = config["moe_intermediate_size"], range(config["num_hidden_layers"])
    first, last = config["moe_layer_start_index"], config.get("moe_layer_end_index")
    every = config.get("moe_layer_interval") or 1
    routed = range(first, len(layers) if last in (None, -1) else last + 1)
    experts = ExpertSpec(
        count=config["moe_num_experts"],
        per_token=config["moe_k"],
        intermediate_size=size,
        score_bias=True,
        shared_size=size * (config.get("moe_num_shared_experts") or 0),
        dense_layers=frozenset(layer for layer in layers if layer not in routed or (layer + 1) % every),
    )
    return ernie4_5(config) | {"experts": experts}


def gpt_oss(config: Config) -> dict[str, Any]:
    require(config, "swiglu_alpha", 1.702)
    require(config, "swiglu_limit", 7.0)
    experts = ExpertSpec(
        count=config["num_local_experts"],
        per_token=config.get("num_experts_per_tok") or config["experts_per_token"],
        intermediate_size=config["intermediate_size"],
        bias=True,
    )
    return llama(config) | {
        "experts": experts,
        "activation": Activation.CLAMPED,
        "attention": AttentionSpec(windows=windows(config, lambda layer: layer % 2 == 0), sinks=True),
    }


def deepseek_experts(config: Config, scoring: Scoring, *, normalized: bool, grouped: bool) -> ExpertSpec:
    size = config["moe_intermediate_size"]
    return ExpertSpec(
        count=config["n_routed_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=size,
        scoring=scoring,
        normalized=normalized,
        scale=float(config.get("routed_scaling_factor", 1.0)),
        score_bias=scoring is Scoring.SIGMOID,
        groups=(config.get("n_group") or 1) if grouped else 1,
        groups_per_token=(config.get("topk_group") or 1) if grouped else 1,
        shared_size=size * (config.get("n_shared_experts") or 0),
        dense_layers=frozenset(range(config.get("first_k_dense_replace") or 0)),
    )
