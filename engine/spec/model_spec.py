"""The shape and options of a model, read from a Hugging Face folder. Does not import torch.

Every field of config.json that affects the computation is either honoured or refused by name, so a model that
loads is computed correctly.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.spec.errors import UnsupportedModel
from engine.spec.rope_spec import RopeSpec

__all__ = ["ModelSpec"]

logger = logging.getLogger(__name__)

Config = Mapping[str, Any]

ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
"""`model_type` of config.json, for folders that name no architecture, to the architecture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape and options of one decoder-only transformer."""

    architecture: str
    """The Hugging Face class name, such as "LlamaForCausalLM"."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    """Longest context, prompt and output together, that the model supports."""
    norm_eps: float
    rope: RopeSpec | None
    """None: positions are learned embeddings."""
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether attention's output projection has a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether every query and key head is normalised before rotation (Qwen3)."""
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    """Precision of the stored weights."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            heads = f"num_attention_heads={self.num_heads}, num_key_value_heads={self.num_kv_heads}"
            raise UnsupportedModel(f"{heads}: query heads must divide evenly among the key heads")

    @property
    def q_size(self) -> int:
        """Features of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Features of all key heads; the value heads have as many."""
        return self.num_kv_heads * self.head_dim

    @property
    def balanced_context(self) -> float:
        """Tokens of context at which attention takes as much arithmetic as all matrices of a layer."""
        mlp_matrices = 2 if self.architecture == "GPT2LMHeadModel" else 3
        attention_matrices = 2 * self.q_size + 2 * self.kv_size
        features = attention_matrices + mlp_matrices * self.intermediate_size
        return self.hidden_size * features / (2 * self.q_size)

    @classmethod
    def from_folder(cls, folder: Path) -> ModelSpec:
        """Read config.json and, for the end-of-sequence ids, generation_config.json.

        Raises:
            UnsupportedModel: Baton does not support this model; the message says why.
        """
        config = _read_json(folder / "config.json")
        if config is None:
            raise UnsupportedModel(f"{folder} has no config.json: it is no Hugging Face model folder")
        generation = _read_json(folder / "generation_config.json") or {}
        return cls.from_config(config, generation)

    @classmethod
    def from_config(cls, config: Config, generation: Config | None = None) -> ModelSpec:
        """Interpret a parsed config.json. Raises UnsupportedModel."""
        architecture = _architecture(config)
        if config.get("quantization_config"):
            method = config["quantization_config"].get("quant_method", "an unnamed method")
            raise UnsupportedModel(f"{method} weights are not supported; use the unquantized model")
        read = _gpt2 if architecture == "GPT2LMHeadModel" else _llama_family
        try:
            return cls(
                architecture=architecture,
                vocab_size=config["vocab_size"],
                eos_token_ids=_eos_token_ids(config, generation or {}),
                dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
                **read(architecture, config),
            )
        except KeyError as field:
            raise UnsupportedModel(f"config.json of this {architecture} lacks {field}") from field


def _architecture(config: Config) -> str:
    named = config.get("architectures") or [ARCHITECTURES.get(config.get("model_type", ""))]
    for architecture in named:
        if architecture in ARCHITECTURES.values():
            return str(architecture)
    what = ", ".join(filter(None, named)) or f"model_type {config.get('model_type')!r}"
    raise UnsupportedModel(f"{what} is not supported; Baton runs {', '.join(sorted(ARCHITECTURES.values()))}")


def _llama_family(architecture: str, config: Config) -> dict[str, Any]:
    """Llama, Mistral and Qwen, which differ in biases and in the q/k norm."""
    _require(config, "hidden_act", "silu")
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    attention_bias = bool(config.get("attention_bias", False))
    return {
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": head_dim,
        "max_position": _max_position(config),
        "norm_eps": config["rms_norm_eps"],
        "rope": RopeSpec.from_config(config),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": attention_bias or architecture == "Qwen2ForCausalLM",
        "output_bias": attention_bias,
        "mlp_bias": bool(config.get("mlp_bias", False)),
        "qk_norm": architecture == "Qwen3ForCausalLM",
    }


def _gpt2(_architecture: str, config: Config) -> dict[str, Any]:
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
    }


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


def _eos_token_ids(config: Config, generation: Config) -> tuple[int, ...]:
    """generation_config.json takes precedence: chat models end a turn with tokens of their own."""
    ids = generation.get("eos_token_id", config.get("eos_token_id"))
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (int(ids),)


def _require(config: Config, field: str, value: object) -> None:
    """Raise UnsupportedModel if `field` is given with a value that Baton does not support."""
    if config.get(field, value) != value:
        raise UnsupportedModel(f"{field}={config[field]!r} is not supported; it must be {value!r}")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise UnsupportedModel(f"{path} holds no JSON object")
    return parsed
