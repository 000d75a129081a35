"""Fields of config.json that many architectures spell alike.

Every field that affects the computation is either honoured or refused by name, so a model that loads is
computed correctly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from engine.model_config.errors import UnsupportedModel
from engine.model_config.parts.attention_spec import AttentionSpec
from engine.model_config.parts.rope_spec import RopeScaling, RopeSpec

Config: TypeAlias = Mapping[str, Any]


def llama(config: Config, *, partial_rotation: bool = False) -> dict[str, Any]:
    """Fields of `ModelSpec` for Llama and its relatives, which extend them."""
    require(config, "hidden_act", "silu")
    heads = config["num_attention_heads"]
    attention_bias = bool(config.get("attention_bias", False))
    rope = RopeSpec.from_config(config, partial=partial_rotation, layer_type="full_attention")
    return {
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "max_position": _max_position(config, rope),
        "norm_eps": config["rms_norm_eps"],
        "rope": rope,
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": attention_bias,
        "output_bias": attention_bias,
        "mlp_bias": bool(config.get("mlp_bias", False)),
        "attention": AttentionSpec(windows=windows(config)),
    }


def windows(config: Config, has_window: Callable[[int], bool] = lambda layer: True) -> tuple[int | None, ...]:
    """The window of each layer; empty if no layer has one.

    `has_window`: the layers with a window, where config.json does not list the types of layers. Raises
    UnsupportedModel if it lists others than these two.
    """
    count = config["num_hidden_layers"]
    window = config.get("sliding_window")
    if "use_sliding_window" in config and not config["use_sliding_window"]:
        window = None
    if types := config.get("layer_types"):
        if others := set(types) - {"full_attention", "sliding_attention"}:
            raise UnsupportedModel(f"layers of the types {', '.join(sorted(others))} are not supported here")
        sliding = [kind == "sliding_attention" for kind in types]
    else:
        sliding = [has_window(layer) for layer in range(count)]
    if window is None or window >= config["max_position_embeddings"] or not any(sliding):
        return ()
    return tuple(int(window) if slides else None for slides in sliding)


def require(config: Config, field: str, value: object) -> None:
    """Raise UnsupportedModel if `field` is given with a value that Baton does not support."""
    if config.get(field, value) != value:
        raise UnsupportedModel(f"{field}={config[field]!r} is not supported; it must be {value!r}")


def _max_position(config: Config, rope: RopeSpec) -> int:
    """The context length. A checkpoint to which YaRN is added keeps stating the one before."""
    longest = int(config["max_position_embeddings"])
    if rope.scaling is RopeScaling.YARN:
        return max(longest, int(rope.factor * rope.original_max_position))
    return longest
