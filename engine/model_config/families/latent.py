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
from engine.model_config.parts.latent_spec import IndexerSpec, LatentSpec
from engine.model_config.parts.recurrent_spec import RecurrentSpec, Rule
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
    return _with_listed_layers(deepseek_v3({"first_k_dense_replace": 1} | dict(config)), config)


def deepseek_v32(config: Config) -> dict[str, Any]:
    """As DeepSeek-V3, with an indexer in every layer."""
    require(config, "rope_interleave", True)
    return _sparse(config, _indexer(config, interleaved=False))


def glm_moe_dsa(config: Config) -> dict[str, Any]:
    """The same, with an indexer that rotates as attention does, and layers that share one."""
    require(config, "indexer_rope_interleave", True)
    kinds = _indexer_types(config)
    if unknown := set(kinds) - {"full", "shared"}:
        raise UnsupportedModel(f"indexer_types: {', '.join(sorted(unknown))} are not supported")
    shared = frozenset(layer for layer, kind in enumerate(kinds) if kind == "shared")
    return _sparse(config, replace(_indexer(config, interleaved=True), shared=shared))


def kimi_linear(config: Config) -> dict[str, Any]:
    """Latent attention without rotation, and Kimi delta attention in most layers; other names of fields."""
    require(config, "mla_use_nope", True)
    require(config, "moe_router_activation_func", "sigmoid")
    linear = config.get("linear_attn_config") or {}
    layers = range(config["num_hidden_layers"])
    renamed = {
        "max_position_embeddings": config["model_max_length"],
        "n_routed_experts": config["num_experts"],
        "num_experts_per_tok": config["num_experts_per_token"],
        "n_shared_experts": config["num_shared_experts"],
        "norm_topk_prob": config["moe_renormalize"],
        "n_group": config["num_expert_group"],
        "first_k_dense_replace": config.get("first_k_dense_replace", 1),
        "num_nextn_predict_layers": 0,
        **dict.fromkeys(("layer_types", "rope_parameters", "rope_scaling")),
    }
    kinds = config.get("layer_types") or _kimi_layers(linear, len(layers))
    if unknown := set(kinds) - {"linear_attention", "full_attention"}:
        raise UnsupportedModel(f"layers of the types {unknown} are not supported here")
    states = frozenset(layer for layer in layers if kinds[layer] == "linear_attention")
    if len(states) == len(layers):
        raise UnsupportedModel("no layer has attention, which is not supported")
    fields = _with_listed_layers(deepseek_v3({**config, **renamed}), config)
    heads = linear.get("num_heads") or config["linear_num_heads"]
    dim = linear.get("head_dim") or config["linear_head_dim"]
    recurrent = RecurrentSpec(
        layers=states,
        rule=Rule.KIMI_DELTA,
        key_heads=heads,
        value_heads=heads,
        key_dim=dim,
        value_dim=dim,
        kernel=linear.get("short_conv_kernel_size") or config["linear_conv_kernel_dim"],
    )
    return fields | {"unrotated_layers": frozenset(layers), "recurrent": recurrent if states else None}


def _kimi_layers(linear: Config, count: int) -> list[str]:
    """The kind of each layer; checkpoints count them from 1."""
    if "full_attn_layers" in linear and "kda_layers" in linear:
        full = set(linear["full_attn_layers"])
        return ["full_attention" if layer + 1 in full else "linear_attention" for layer in range(count)]
    return ["full_attention" if layer and layer % 4 == 0 else "linear_attention" for layer in range(count)]


def _indexer(config: Config, *, interleaved: bool) -> IndexerSpec:
    return IndexerSpec(
        heads=config["index_n_heads"],
        dim=config["index_head_dim"],
        chosen=config["index_topk"],
        interleaved=interleaved,
    )


def _indexer_types(config: Config) -> list[str]:
    """For each layer, whether it has an indexer ("full"), in any spelling that transformers reads."""
    if config.get("indexer_types") is not None:
        return list(config["indexer_types"])
    if (pattern := config.get("index_topk_pattern")) is not None:
        return [{"F": "full", "S": "shared"}.get(kind, kind) for kind in pattern]
    every, first = max(config.get("index_topk_freq") or 1, 1), config.get("index_skip_topk_offset", 2)
    places = (max(layer - first + 1, 0) for layer in range(config["num_hidden_layers"]))
    return ["shared" if place % every else "full" for place in places]


def _sparse(config: Config, indexer: IndexerSpec) -> dict[str, Any]:
    types = set(config.get("layer_types") or ()) - {"indexed_attention"}
    if types:
        raise UnsupportedModel(f"layers of the types {', '.join(sorted(types))} are not supported here")
    fields = _with_listed_layers(deepseek_v3({**config, "layer_types": None}), config)
    latent: LatentSpec = replace(fields["latent"], indexer=indexer)
    if latent.query_rank is None:
        raise UnsupportedModel("q_lora_rank=None is not supported: an indexer reads the latent of queries")
    if latent.stored % 2 or indexer.dim < latent.rotated:
        raise UnsupportedModel(
            f"index_head_dim={indexer.dim} is not supported with kv_lora_rank={latent.rank} and"
            f" qk_rope_head_dim={latent.rotated}"
        )
    return fields | {"latent": latent, "head_dim": latent.stored // 2}


def _with_listed_layers(fields: dict[str, Any], config: Config) -> dict[str, Any]:
    """`fields`, with the layers without experts that config.json lists, if it does."""
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
