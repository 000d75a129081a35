"""Bidirectional encoders, and how each spells its shape in config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.model_config.config_fields import Config, require
from engine.model_config.parts.attention_spec import AttentionSpec
from engine.model_config.parts.encoder_spec import EncoderSpec
from engine.model_config.parts.layer_options import Head


def bert(config: Config) -> dict[str, Any]:
    require(config, "hidden_act", "gelu")
    require(config, "position_embedding_type", "absolute")
    require(config, "is_decoder", False)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    positions, types = config["max_position_embeddings"], config.get("type_vocab_size", 2)
    return {
        "vocab_size": config["vocab_size"] * types,
        "hidden_size": hidden,
        "intermediate_size": config["intermediate_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "max_position": positions,
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "rope": None,
        "tied_embeddings": True,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "gated_mlp": False,
        "attention": AttentionSpec(bidirectional=True),
        "encoder": EncoderSpec(positions=positions, token_types=types),
        "head": Head.NONE,
    }


def roberta(config: Config) -> dict[str, Any]:
    """Positions begin after the padding token's, which is one of those that config.json counts."""
    fields = bert({"layer_norm_eps": 1e-5, **config})
    first = config.get("pad_token_id", 1) + 1
    modules = ("classifier.dense", "classifier.out_proj")
    encoder = replace(fields["encoder"], first_position=first, head_modules=modules)
    return fields | {"encoder": encoder, "max_position": fields["max_position"] - first}
