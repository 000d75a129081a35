"""Families with Mamba2, and how each spells its shape in config.json."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from engine.model_config.config_fields import Config, llama, require
from engine.model_config.errors import UnsupportedModel
from engine.model_config.families.dense import granite
from engine.model_config.families.experts import deepseek_experts
from engine.model_config.parts.attention_spec import AttentionSpec
from engine.model_config.parts.expert_spec import ExpertSpec, Scoring
from engine.model_config.parts.layer_options import Activation
from engine.model_config.parts.recurrent_spec import RecurrentSpec, Rule

_STATE, _ATTENTION, _EXPERTS, _MLP = "linear_attention", "full_attention", "moe", "mlp"
_LETTERS: Final = {"M": _STATE, "*": _ATTENTION, "E": _EXPERTS, "-": _MLP}
_OLD_FIELDS: Final = ("mamba_n_groups", "mamba_d_conv", "mamba_dt_min", "mamba_conv_bias")
"""Other spellings that transformers reads; no published checkpoint is known to have them."""
_OLD_NAMES: Final = {"mamba": _STATE, "attention": _ATTENTION}
_GRANITE_NUMBERS: Final = (
    *("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"),
    *("num_local_experts", "num_experts_per_tok", "mamba_n_heads", "mamba_n_groups", "mamba_d_state"),
    *("mamba_d_conv", "mamba_expand", "mamba_conv_bias"),
)


def nemotron_h(config: Config) -> dict[str, Any]:
    """Each layer is one of four kinds. Nothing is rotated."""
    for field in ("use_bias", "mamba_proj_bias", "mlp_bias", "attention_bias"):
        require(config, field, False)
    for field in _OLD_FIELDS:
        require(config, field, None)
    for field, value in (("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu"), ("sliding_window", None)):
        require(config, field, value)
    kinds = _kinds(config)
    layers = {kind: frozenset(i for i, one in enumerate(kinds) if one == kind) for kind in _LETTERS.values()}
    whole = frozenset(range(len(kinds)))
    if not layers[_ATTENTION]:
        raise UnsupportedModel("no layer has attention, which is not supported")
    plain = {
        "num_hidden_layers": len(kinds),
        "rms_norm_eps": config["layer_norm_epsilon"],
        **dict.fromkeys(("layer_types", "rope_parameters", "rope_scaling")),
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
    }
    return llama({**config, **plain}) | {
        "attention": AttentionSpec(name="mixer"),
        "unrotated_layers": whole,
        "recurrent": RecurrentSpec(
            layers=layers[_STATE],
            rule=Rule.STATE_SPACE,
            key_heads=config["n_groups"],
            value_heads=config["mamba_num_heads"],
            key_dim=config["ssm_state_size"],
            value_dim=config["mamba_head_dim"],
            kernel=config["conv_kernel"],
            kernel_bias=bool(config["use_conv_bias"]),
            smallest_step=float(config["time_step_min"]),
        )
        if layers[_STATE]
        else None,
        "gated_mlp": False,
        "activation": Activation.SQUARED_RELU,
        "lone_mlps": layers[_EXPERTS] | layers[_MLP],
        "experts": _experts(config, whole - layers[_EXPERTS]) if layers[_EXPERTS] else None,
    }


def granite_moe_hybrid(config: Config) -> dict[str, Any]:
    """Granite 4: Mamba2 in place of most layers' attention; experts beside a shared one, or an MLP alone."""
    require(config, "mamba_proj_bias", False)
    if null := [field for field in _GRANITE_NUMBERS if config.get(field, 0) is None]:
        raise UnsupportedModel(f"{', '.join(null)}: null is not supported")
    if config.get("quantization_config"):
        raise UnsupportedModel(
            "quantized checkpoints of this architecture are not supported; use one in 16 bits, with"
            " --quantization fp8"
        )
    kinds = config.get("layer_types") or [_STATE] * config["num_hidden_layers"]
    kinds = [_OLD_NAMES.get(kind, kind) for kind in kinds]
    if unknown := set(kinds) - {_STATE, _ATTENTION}:
        raise UnsupportedModel(f"layers of the types {', '.join(sorted(unknown))} are not supported here")
    if _ATTENTION not in kinds:
        raise UnsupportedModel("no layer has attention, which is not supported")
    states = frozenset(layer for layer, kind in enumerate(kinds) if kind == _STATE)
    shared = config["shared_intermediate_size"]
    rotated = config.get("position_embedding_type") == "rope"
    fields = granite({**config, "layer_types": None, "intermediate_size": shared})
    experts = None
    if config["num_local_experts"]:
        experts = ExpertSpec(
            count=config["num_local_experts"],
            per_token=config["num_experts_per_tok"],
            intermediate_size=config["intermediate_size"],
            shared_size=shared,
        )
    return fields | {
        "unrotated_layers": frozenset() if rotated else frozenset(range(len(kinds))),
        "experts": experts,
        "recurrent": _granite_states(config, states) if states else None,
    }


def _granite_states(config: Config, layers: frozenset[int]) -> RecurrentSpec:
    heads = config["mamba_n_heads"]
    smallest, largest = config.get("time_step_limit") or (0.0, math.inf)
    if largest not in (math.inf, {"__float__": "Infinity"}):
        raise UnsupportedModel(f"time_step_limit with a largest step of {largest} is not supported")
    return RecurrentSpec(
        layers=layers,
        rule=Rule.STATE_SPACE,
        key_heads=config["mamba_n_groups"],
        value_heads=heads,
        key_dim=config["mamba_d_state"],
        value_dim=int(config["mamba_expand"] * config["hidden_size"]) // heads,
        kernel=config["mamba_d_conv"],
        kernel_bias=bool(config["mamba_conv_bias"]),
        smallest_step=float(smallest),
    )


def _experts(config: Config, others: frozenset[int]) -> ExpertSpec:
    normalized = bool(config["norm_topk_prob"])
    experts = deepseek_experts(config, Scoring.SIGMOID, normalized=normalized, grouped=True)
    return replace(
        experts,
        shared_size=config["moe_shared_expert_intermediate_size"],
        latent=config.get("moe_latent_size"),
        dense_layers=others,
    )


def _kinds(config: Config) -> list[str]:
    """The kind of each layer, from a list or from a word of one letter a layer."""
    kinds = config.get("layers_block_type") or config.get("layer_types")
    if kinds is None:
        kinds = [_LETTERS.get(letter, letter) for letter in config["hybrid_override_pattern"]]
    kinds = [_OLD_NAMES.get(kind, kind) for kind in kinds]
    if unknown := set(kinds) - set(_LETTERS.values()):
        raise UnsupportedModel(f"layers of the types {', '.join(sorted(unknown))} are not supported here")
    return kinds
