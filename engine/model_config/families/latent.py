"""Families with latent attention, and how each spells its shape in config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.model_config.config_fields import Config, llama, require
from engine.model_config.errors import UnsupportedModel
from engine.model_config.families.experts import deepseek_experts
from engine.model_config.mtp_spec import nextn
from engine.model_config.parts.attention_spec import AttentionSpec
from engine.model_config.parts.expert_spec import Scoring
from engine.model_config.parts.latent_spec import LatentSpec
from engine.model_config.parts.rope_spec import RopeScaling, RopeSpec, mscale


def deepseek_v2(config: Config) -> dict[str, Any]:
    require(config, "norm_topk_prob", False)
    match config.get("topk_method", "greedy"):
        case "greedy":
            grouped = False
        case "group_limited_greedy":
            grouped = True
        case method:
            raise UnsupportedModel(f"topk_method={method!r} is not supported")
    experts = deepseek_experts(config, Scoring.SOFTMAX, normalized=False, grouped=grouped)
    return _deepseek(config) | {"experts": replace(experts, scores_per_group=1)}


def deepseek_v3(config: Config) -> dict[str, Any]:
    normalized = bool(config.get("norm_topk_prob", True))
    experts = deepseek_experts(config, Scoring.SIGMOID, normalized=normalized, grouped=True)
    return _deepseek(config) | {
        "experts": experts,
        "mtp": nextn(config),
    }


def glm4_moe_lite(config: Config) -> dict[str, Any]:
    """As DeepSeek-V3, with a list of layers without experts, of which the first is one by default."""
    fields = deepseek_v3({"first_k_dense_replace": 1} | dict(config))
    if types := config.get("mlp_layer_types"):
        dense = frozenset(layer for layer, kind in enumerate(types) if kind == "dense")
        fields["experts"] = replace(fields["experts"], dense_layers=dense)
    return fields


def _deepseek(config: Config) -> dict[str, Any]:
    require(config, "attention_bias", False)
    require(config, "moe_layer_freq", 1)
    latent = LatentSpec(
        rank=config["kv_lora_rank"],
        rotated=config["qk_rope_head_dim"],
        unrotated=config["qk_nope_head_dim"],
        value_dim=config["v_head_dim"],
        query_rank=config.get("q_lora_rank"),
        interleaved=bool(config.get("rope_interleave", True)),
    )
    # A row is stored as if its halves were the key and the value of a single head.
    stored = {"num_key_value_heads": 1, "head_dim": latent.row // 2}
    fields = llama({**config, **stored})
    rope: RopeSpec = fields["rope"]
    scale = latent.query_dim**-0.5
    if rope.scaling is not RopeScaling.NONE:
        given = config.get("rope_parameters") or config["rope_scaling"]
        if of_all := given.get("mscale_all_dim", 0):
            scale *= mscale(rope.factor, of_all) ** 2
    return fields | {"latent": latent, "attention": AttentionSpec(scale=scale)}
