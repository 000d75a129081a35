"""Families without a reader of their own: transformers describes them, in a process of its own.

A description takes seconds, most of them imports of torch and transformers, which the router does without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final

from engine.model_config.config_fields import Config
from engine.model_config.config_file import of_the_text
from engine.model_config.errors import UnsupportedModel
from engine.model_config.families.vision import vision_of
from engine.model_config.parts.general_spec import GeneralLayer, GeneralSpec
from engine.model_config.quantization_config import read_quantization

_INSTALL: Final = "pip install 'baton-llm[transformers]'"
_DESCRIBER: Final = "engine.modeling.general.describe"
_TIMEOUT: Final = 300.0
_KERNEL_SIZES: Final = (64, 128, 256)
"""Features of a head that GPU kernels have. Others up to 256 are stored with zeros."""
_IMAGES_IN_LAYERS: Final = frozenset({"gemma4", "qwen3_vl", "qwen3_vl_moe"})
"""Models whose images enter further layers than the first: transformers' modules serve them as text."""
_CONTEXT_FIELDS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
)


def general_fields(config: Config) -> dict[str, Any]:
    """Fields of `ModelSpec` of a model that runs transformers' modules. Raises UnsupportedModel."""
    if "model_type" not in config:
        raise UnsupportedModel("config.json has no model_type")
    if find_spec("transformers") is None:
        raise UnsupportedModel(f"transformers, whose modules may run it, is not installed: {_INSTALL}")
    quantization = read_quantization({**config, **of_the_text(config)})
    unquantized = {name: value for name, value in config.items() if name != "quantization_config"}
    answer = _described(json.dumps(unquantized, sort_keys=True))
    if "refused" in answer:
        raise UnsupportedModel(answer["refused"])
    if quantization is not None and answer["general"]["stacks"]:
        raise UnsupportedModel(
            "quantized experts are not supported with transformers' modules, which have all of a layer in one"
            " tensor; use an unquantized checkpoint"
        )
    vision = None if config["model_type"] in _IMAGES_IN_LAYERS else vision_of(config)
    return fields_of(answer) | {"quantization": quantization, "vision": vision}


@lru_cache(maxsize=64)
def _described(config: str) -> dict[str, Any]:
    """What the describing process answers: fields, or why it refuses."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    try:
        process = subprocess.run(
            [sys.executable, "-m", _DESCRIBER],
            input=config,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            env=environment,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise UnsupportedModel(
            f"describing the model with transformers failed: {error.stderr[-500:]}"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnsupportedModel(f"describing the model with transformers took over {_TIMEOUT:.0f} s") from None
    answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return answer


def fields_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `ModelSpec` from the answer of `describe`, which is JSON. Raises UnsupportedModel."""
    stored = described["general"]
    layers = tuple(GeneralLayer(**layer) for layer in stored["layers"])
    names = ("read_directly", "not_by_token", "unused", "table")
    general = GeneralSpec(**{**stored, "layers": layers, **{name: tuple(stored[name]) for name in names}})
    kv_heads = max(layer.kv_heads for layer in layers)
    group = max(layer.heads // layer.kv_heads for layer in layers)
    text = described["text"]
    longest = next((text[name] for name in _CONTEXT_FIELDS if text.get(name)), None)
    if longest is None:
        raise UnsupportedModel("config.json does not say how long a context can be")
    return {
        "general": general,
        "vocab_size": described["vocab_size"],
        "hidden_size": described["hidden_size"],
        "intermediate_size": _widest(text.get("intermediate_size")) or 4 * described["hidden_size"],
        "tied_embeddings": described["tied_embeddings"],
        "num_layers": len(layers),
        "num_heads": kv_heads * group,
        "num_kv_heads": kv_heads,
        "head_dim": _stored_size(max(max(layer.head_dim, layer.value_dim) for layer in layers)),
        "max_position": longest,
        "norm_eps": 0.0,
        "rope": None,
    }


def _widest(sizes: int | list[int] | None) -> int | None:
    return max(sizes) if isinstance(sizes, list) else sizes


def _stored_size(features: int) -> int:
    return next((size for size in _KERNEL_SIZES if features <= size), features)
