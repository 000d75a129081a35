"""The architectures that Baton runs, and how each spells its shape in config.json. Does not import torch.

Every field of config.json that affects the computation is either honoured or refused by name, so a model that
loads is computed correctly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from engine.spec.delta_spec import DeltaSpec
from engine.spec.errors import UnsupportedModel
from engine.spec.expert_spec import ExpertSpec, Scoring
from engine.spec.rope_spec import RopeSpec

__all__ = ["ARCHITECTURES", "Architecture", "Config", "QKNorm", "architecture_of"]

logger = logging.getLogger(__name__)

Config: TypeAlias = Mapping[str, Any]


class QKNorm(Enum):
    """What queries and keys are normalised over, before rotation."""

    HEAD = "head"
    """Each head by itself (Qwen3)."""
    ALL_HEADS = "all heads"
    """All query heads together, and all key heads together (OLMoE)."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one class of transformers is described by its config.json."""

    model_type: str
    """Names the architecture in folders that have no `architectures`."""
    read: Callable[[Config], dict[str, Any]]
    """Fields of `ModelSpec` that depend on the architecture."""


def architecture_of(config: Config) -> str:
    """The first architecture of config.json that Baton runs. Raises UnsupportedModel."""
    by_type = {architecture.model_type: name for name, architecture in ARCHITECTURES.items()}
    named = config.get("architectures") or [by_type.get(config.get("model_type", ""))]
    for name in named:
        if name in ARCHITECTURES:
            return str(name)
    what = ", ".join(filter(None, named)) or f"model_type {config.get('model_type')!r}"
    raise UnsupportedModel(f"{what} is not supported; Baton runs {', '.join(sorted(ARCHITECTURES))}")


def _llama(config: Config, *, partial_rotation: bool = False) -> dict[str, Any]:
    """Llama, Mistral and Qwen, which differ in biases and in the q/k norm."""
    _require(config, "hidden_act", "silu")
    heads = config["num_attention_heads"]
    attention_bias = bool(config.get("attention_bias", False))
    return {
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "max_position": _max_position(config),
        "norm_eps": config["rms_norm_eps"],
        "rope": RopeSpec.from_config(config, partial=partial_rotation),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": attention_bias,
        "output_bias": attention_bias,
        "mlp_bias": bool(config.get("mlp_bias", False)),
    }


def _qwen2(config: Config) -> dict[str, Any]:
    return _llama(config) | {"qkv_bias": True}


def _qwen3(config: Config) -> dict[str, Any]:
    return _llama(config) | {"qk_norm": QKNorm.HEAD}


def _mixtral(config: Config) -> dict[str, Any]:
    experts = ExpertSpec(
        count=config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=config["intermediate_size"],
    )
    return _llama(config) | {"experts": experts}


def _qwen2_moe(config: Config) -> dict[str, Any]:
    experts = ExpertSpec(
        count=config["num_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=config["moe_intermediate_size"],
        normalized=bool(config.get("norm_topk_prob", False)),
        shared_size=config["shared_expert_intermediate_size"],
        shared_gate=True,
        dense_layers=_dense_layers(config),
    )
    return _llama(config) | {"qkv_bias": bool(config.get("qkv_bias", True)), "experts": experts}


def _qwen3_moe(config: Config) -> dict[str, Any]:
    experts = ExpertSpec(
        count=config.get("num_experts") or config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=config["moe_intermediate_size"],
        normalized=bool(config.get("norm_topk_prob", False)),
        dense_layers=_dense_layers(config),
    )
    return _qwen3(config) | {"experts": experts}


def _olmoe(config: Config) -> dict[str, Any]:
    _require(config, "clip_qkv", None)
    experts = ExpertSpec(
        count=config["num_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=config["intermediate_size"],
        normalized=bool(config.get("norm_topk_prob", False)),
    )
    return _llama(config) | {"qk_norm": QKNorm.ALL_HEADS, "experts": experts}


def _glm4_moe(config: Config) -> dict[str, Any]:
    size = config["moe_intermediate_size"]
    experts = ExpertSpec(
        count=config["n_routed_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=size,
        scoring=Scoring.SIGMOID,
        normalized=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 1.0)),
        score_bias=True,
        groups=config.get("n_group", 1),
        groups_per_token=config.get("topk_group", 1),
        shared_size=size * config.get("n_shared_experts", 1),
        dense_layers=frozenset(range(config.get("first_k_dense_replace", 1))),
    )
    norm = QKNorm.HEAD if config.get("use_qk_norm", False) else None
    return _llama({"partial_rotary_factor": 0.5} | dict(config), partial_rotation=True) | {
        "output_bias": False,
        "qk_norm": norm,
        "experts": experts,
        "num_draft_layers": config.get("num_nextn_predict_layers", 0),
    }


def _qwen3_next(config: Config) -> dict[str, Any]:
    experts = ExpertSpec(
        count=config["num_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate_size=config["moe_intermediate_size"],
        normalized=bool(config.get("norm_topk_prob", True)),
        shared_size=config["shared_expert_intermediate_size"],
        shared_gate=True,
        dense_layers=_dense_layers(config),
    )
    return _with_delta_nets(config, interleaved=True) | {"experts": experts}


def _qwen3_5(config: Config) -> dict[str, Any]:
    return _with_delta_nets(config)


def _qwen3_5_moe(config: Config) -> dict[str, Any]:
    # Every layer has experts, so checkpoints state no size of a plain MLP.
    sizes = {"intermediate_size": config["shared_expert_intermediate_size"]}
    return _qwen3_next(sizes | dict(config)) | _with_delta_nets(sizes | dict(config))


def _with_delta_nets(config: Config, *, interleaved: bool = False) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5: of four layers, three have a gated delta net, unless `layer_types` says."""
    interval = config.get("full_attention_interval", 4)
    count = config["num_hidden_layers"]
    kinds = config.get("layer_types") or [
        "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(count)
    ]
    if unknown := set(kinds) - {"linear_attention", "full_attention"}:
        raise UnsupportedModel(f"layer_types has {', '.join(sorted(unknown))}, which is not supported here")
    delta = DeltaSpec(
        layers=frozenset(layer for layer, kind in enumerate(kinds) if kind == "linear_attention"),
        key_heads=config["linear_num_key_heads"],
        value_heads=config["linear_num_value_heads"],
        key_dim=config["linear_key_head_dim"],
        value_dim=config["linear_value_head_dim"],
        kernel=config["linear_conv_kernel_dim"],
        interleaved=interleaved,
    )
    return _llama({"partial_rotary_factor": 0.25} | dict(config), partial_rotation=True) | {
        "qk_norm": QKNorm.HEAD,
        "centred_norms": True,
        "output_gate": True,
        "delta": delta,
    }


def _dense_layers(config: Config) -> frozenset[int]:
    """Layers without experts, as Qwen's models name them."""
    named, every = config.get("mlp_only_layers") or (), config.get("decoder_sparse_step", 1)
    layers = range(config["num_hidden_layers"])
    return frozenset(layer for layer in layers if layer in named or (layer + 1) % every)


def _gpt2(config: Config) -> dict[str, Any]:
    _require(config, "activation_function", "gelu_new")
    _require(config, "scale_attn_weights", True)
    _require(config, "scale_attn_by_inverse_layer_idx", False)
    _require(config, "add_cross_attention", False)
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


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "LlamaForCausalLM": Architecture("llama", _llama),
    "MistralForCausalLM": Architecture("mistral", _llama),
    "Qwen2ForCausalLM": Architecture("qwen2", _qwen2),
    "Qwen3ForCausalLM": Architecture("qwen3", _qwen3),
    "MixtralForCausalLM": Architecture("mixtral", _mixtral),
    "Qwen2MoeForCausalLM": Architecture("qwen2_moe", _qwen2_moe),
    "Qwen3MoeForCausalLM": Architecture("qwen3_moe", _qwen3_moe),
    "OlmoeForCausalLM": Architecture("olmoe", _olmoe),
    "Glm4MoeForCausalLM": Architecture("glm4_moe", _glm4_moe),
    "Qwen3NextForCausalLM": Architecture("qwen3_next", _qwen3_next),
    "Qwen3_5ForCausalLM": Architecture("qwen3_5_text", _qwen3_5),
    "Qwen3_5ForConditionalGeneration": Architecture("qwen3_5", _qwen3_5),
    "Qwen3_5MoeForCausalLM": Architecture("qwen3_5_moe_text", _qwen3_5_moe),
    "Qwen3_5MoeForConditionalGeneration": Architecture("qwen3_5_moe", _qwen3_5_moe),
    "GPT2LMHeadModel": Architecture("gpt2", _gpt2),
}
"""By the class name that config.json gives."""


def _max_position(config: Config) -> int:
    """The context length; that of the sliding window if there is one.

    Within its window, a sliding-window layer is plain causal attention, so results are exact; longer requests
    are refused, because they would be computed incorrectly.
    """
    longest = int(config["max_position_embeddings"])
    window = config.get("sliding_window")
    if "use_sliding_window" in config and not config["use_sliding_window"]:
        window = None
    if window is None or window >= longest:
        return longest
    logger.warning(
        "this model attends through a sliding window of %d tokens: its context is limited to that, not %d",
        window,
        longest,
    )
    return int(window)


def _require(config: Config, field: str, value: object) -> None:
    """Raise UnsupportedModel if `field` is given with a value that Baton does not support."""
    if config.get(field, value) != value:
        raise UnsupportedModel(f"{field}={config[field]!r} is not supported; it must be {value!r}")
