"""Families with gated delta nets, and how each spells its shape in config.json."""

from __future__ import annotations

from typing import Any

from engine.model_config.config_fields import Config, llama
from engine.model_config.errors import UnsupportedModel
from engine.model_config.families.experts import qwen_experts
from engine.model_config.mtp_spec import QWEN_MTP
from engine.model_config.parts.layer_options import QKNorm
from engine.model_config.parts.recurrent_spec import RecurrentSpec


def qwen3_next(config: Config) -> dict[str, Any]:
    experts = qwen_experts(config, normalized=True, shared=True)
    return _with_delta_nets(config, interleaved=True) | {"experts": experts}


def qwen3_5(config: Config) -> dict[str, Any]:
    return _with_delta_nets(config)


def qwen3_5_moe(config: Config) -> dict[str, Any]:
    # Every layer has experts, so checkpoints state no size of a plain MLP.
    sizes = {"intermediate_size": config["shared_expert_intermediate_size"]}
    return qwen3_next(sizes | dict(config)) | _with_delta_nets(sizes | dict(config))


def _with_delta_nets(config: Config, *, interleaved: bool = False) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5: of four layers, three have a gated delta net, unless `layer_types` says."""
    interval = config.get("full_attention_interval", 4)
    count = config["num_hidden_layers"]
    kinds = config.get("layer_types") or [
        "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(count)
    ]
    if unknown := set(kinds) - {"linear_attention", "full_attention"}:
        raise UnsupportedModel(f"layer_types has {', '.join(sorted(unknown))}, which is not supported here")
    delta = RecurrentSpec(
        layers=frozenset(layer for layer, kind in enumerate(kinds) if kind == "linear_attention"),
        key_heads=config["linear_num_key_heads"],
        value_heads=config["linear_num_value_heads"],
        key_dim=config["linear_key_head_dim"],
        value_dim=config["linear_value_head_dim"],
        kernel=config["linear_conv_kernel_dim"],
        interleaved=interleaved,
    )
    attention = {"partial_rotary_factor": 0.25} | dict(config) | {"layer_types": None}
    return llama(attention, partial_rotation=True) | {
        "qk_norm": QKNorm.HEAD,
        "centred_norms": True,
        "output_gate": True,
        "recurrent": delta,
        "mtp": QWEN_MTP,
    }
