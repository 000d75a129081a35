"""The architectures that Baton runs, and how each spells its shape in config.json. Does not import torch.

Every field of config.json that affects the computation is either honoured or refused by name, so a model that
loads is computed correctly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from engine.spec.errors import UnsupportedModel
from engine.spec.rope_spec import RopeSpec

__all__ = ["ARCHITECTURES", "Architecture", "Config", "architecture_of"]

logger = logging.getLogger(__name__)

Config: TypeAlias = Mapping[str, Any]


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


def _llama(config: Config) -> dict[str, Any]:
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
        "rope": RopeSpec.from_config(config),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": attention_bias,
        "output_bias": attention_bias,
        "mlp_bias": bool(config.get("mlp_bias", False)),
    }


def _qwen2(config: Config) -> dict[str, Any]:
    return _llama(config) | {"qkv_bias": True}


def _qwen3(config: Config) -> dict[str, Any]:
    return _llama(config) | {"qk_norm": True}


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
