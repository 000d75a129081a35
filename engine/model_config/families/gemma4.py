"""Gemma 4, and how it spells its shape in config.json."""

from __future__ import annotations

from typing import Any, Final

from common.kv_groups import KVHeads
from engine.model_config.config_fields import Config, llama, require, windows
from engine.model_config.errors import UnsupportedModel
from engine.model_config.parts.attention_spec import AttentionSpec, OtherHeads
from engine.model_config.parts.expert_spec import ExpertSpec
from engine.model_config.parts.layer_options import Activation, Norms, QKNorm
from engine.model_config.parts.per_layer_spec import PerLayerSpec
from engine.model_config.parts.rope_spec import RopeSpec

DEFAULTS: Final[dict[str, Any]] = {
    "vocab_size": 262144,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
    },
}
"""Defaults of text configs, which may leave out fields with these values."""
UNIFIED_DEFAULTS: Final[dict[str, Any]] = DEFAULTS | {
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
"""Defaults of the 12B model, whose one class takes text, images and audio."""
_FULL: Final = "full_attention"


def gemma4(config: Config) -> dict[str, Any]:
    require(config, "hidden_activation", "gelu_pytorch_tanh")
    if config.get("use_bidirectional_attention") == "all":
        raise UnsupportedModel(
            "use_bidirectional_attention='all' is not supported: answers need causal layers"
        )
    config = {key: value for key, value in config.items() if value is not None}
    config |= {"layer_types": _kinds(config), "hidden_act": "silu"}
    plain = {**config, "rope_parameters": config["rope_parameters"]["sliding_attention"]}
    fields = llama(plain)
    rope = RopeSpec.from_config(config, partial=True, layer_type=_FULL)
    reads = _reads(config)
    readers = frozenset(layer for layer, source in enumerate(reads) if source is not None)
    features = config.get("hidden_size_per_layer_input", 0)  # null: none
    return fields | {
        "rope": rope,
        "window_rope": fields["rope"],
        "attention": AttentionSpec(
            windows=windows(config), scale=1.0, other_heads=_other_heads(config, rope), reads=reads
        ),
        "qk_norm": QKNorm.HEAD,
        "activation": Activation.GELU,
        "norms": Norms.BOTH,
        "embedding_scale": config["hidden_size"] ** 0.5,
        "logit_soft_cap": config.get("final_logit_softcapping"),
        "wide_mlps": readers if config.get("use_double_wide_mlp") else frozenset(),
        "per_layer": _per_layer(config, features) if features else None,
        "experts": _experts(config) if config.get("enable_moe_block") else None,
    }


def _per_layer(config: Config, features: int) -> PerLayerSpec:
    vocab_size, padding = config["vocab_size_per_layer_input"], config.get("pad_token_id", 0)
    return PerLayerSpec(features=features, vocab_size=vocab_size, of_images=padding)


def _kinds(config: Config) -> list[str]:
    """The kind of each layer; the last one attends to everything."""
    layers = range(config["num_hidden_layers"])
    kinds = config.get("layer_types") or [
        "sliding_attention" if (layer + 1) % 6 else _FULL for layer in layers
    ]
    return [*kinds[:-1], _FULL]


def _other_heads(config: Config, rope: RopeSpec) -> OtherHeads | None:
    """Heads of the layers without a window, from one of two ways to write them."""
    full = frozenset(layer for layer, kind in enumerate(config["layer_types"]) if kind == _FULL)
    same = bool(config.get("attention_k_eq_v"))
    usual = {name: config[name] for name in ("head_dim", "num_key_value_heads")}
    given = {"head_dim": config["global_head_dim"]}
    if same and "num_global_key_value_heads" in config:
        given["num_key_value_heads"] = config["num_global_key_value_heads"]
    written = config.get("per_layer_config")
    by_layer = {int(layer): given for layer, given in (written or {}).items()}  # keys such as 05
    sizes = {
        layer: usual | ((given if layer in full else {}) if written is None else by_layer.get(layer, {}))
        for layer in range(len(config["layer_types"]))
    }
    of_full = sizes[min(full)]
    if any(size != (of_full if layer in full else usual) for layer, size in sizes.items()):
        raise UnsupportedModel(
            f"per_layer_config={written} is not supported: heads differ by the kind of layer"
        )
    heads = KVHeads(of_full["num_key_value_heads"], of_full["head_dim"])
    if (
        rope == RopeSpec.from_config(config, layer_type="sliding_attention")
        and heads.dim != usual["head_dim"]
    ):
        raise UnsupportedModel("heads of two sizes that rotate alike are not supported")
    widths = (usual["num_key_value_heads"] * usual["head_dim"], heads.features)
    return OtherHeads(layers=full, heads=heads, values_are_keys=same, widths=widths)


def _reads(config: Config) -> tuple[int | None, ...]:
    """The last layers read the keys and values of the last layer of their kind that has its own."""
    kinds = config["layer_types"]
    own = len(kinds) - config.get("num_kv_shared_layers", 0)
    if own == len(kinds):
        return ()
    last = {kind: layer for layer, kind in enumerate(kinds[:own])}
    if missing := set(kinds) - set(last):
        raise UnsupportedModel(f"num_kv_shared_layers: no layer has keys and values for {', '.join(missing)}")
    return tuple(None if layer < own else last[kind] for layer, kind in enumerate(kinds))


def _experts(config: Config) -> ExpertSpec:
    return ExpertSpec(
        count=config["num_experts"],
        per_token=config["top_k_experts"],
        intermediate_size=config["moe_intermediate_size"],
        shared_size=config["intermediate_size"],
        beside_mlp=True,
    )
