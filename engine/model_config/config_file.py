"""Reads config.json and the fields that all families have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from engine.model_config.config_fields import Config
from engine.model_config.errors import UnsupportedModel

_MODELOPT: Final = "hf_quant_config.json"
"""Where NVIDIA's Model Optimizer described the weights before it did in config.json."""


class TextFields(dict[str, Any]):
    """A config whose null fields are missing where a family needs them."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if value is None:
            raise KeyError(name)
        return value


def of_the_text(config: Config) -> Config:
    """The fields of the language model, which configs of models with a vision part nest, and those of a head
    for drafts too."""
    text = config.get("text_config") or config.get("transformer_layer_config")
    if not text:
        return config
    ties = "tie_word_embeddings"
    return {**config, **text, **({ties: config[ties]} if ties in config else {})}


def dtype_of(config: Config) -> str:
    return config.get("dtype") or config.get("torch_dtype") or "float32"


def eos_token_ids(config: Config, generation: Config) -> tuple[int, ...]:
    """generation_config.json takes precedence: chat models end a turn with tokens of their own."""
    ids = generation.get("eos_token_id", config.get("eos_token_id"))
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (int(ids),)


def read_configs(folder: Path) -> tuple[Config, Config]:
    """config.json, with hf_quant_config.json in NVIDIA's older checkpoints, and generation_config.json."""
    config = read_json(folder / "config.json")
    if config is None:
        raise UnsupportedModel(f"{folder} has no config.json: it is no Hugging Face model folder")
    generation = read_json(folder / "generation_config.json") or {}
    if "quant_method" not in (config.get("quantization_config") or {}) and (
        beside := read_json(folder / _MODELOPT)
    ):
        config = {**config, "quantization_config": {"quant_method": "modelopt", **beside["quantization"]}}
    return config, generation


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise UnsupportedModel(f"{path} holds no JSON object")
    return parsed
