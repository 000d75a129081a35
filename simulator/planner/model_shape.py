"""The shape of a plan's model, from config.json only: weights are neither read nor downloaded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.modeling.loader.checkpoint import CheckpointError, resolve
from engine.modeling.loader.hub.errors import reason_of

_LLAMA: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "dtype": "bfloat16",
}
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "llama-3.1-8b": _LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "llama-3.1-70b": _LLAMA
    | {"hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64},
}
"""Built-in shapes of models whose config.json requires accepting a license."""

_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")


class UnknownModel(ValueError):
    """The model's shape cannot be determined; the message says why."""


def shape_of(model: str) -> ModelSpec:
    """The shape of a name in `SHAPES`, a folder, a config.json, an alias, a .gguf file or a hub id.

    Raises UnknownModel.
    """
    try:
        if model.lower() in SHAPES:
            return ModelSpec.from_config(SHAPES[model.lower()])
        path = Path(model).expanduser()
        if path.is_dir():
            return ModelSpec.from_folder(path)
        if path.is_file() and path.suffix == ".json":
            return ModelSpec.from_config(json.loads(path.read_text()))
        if not path.exists() and _HUB_ID.fullmatch(model):
            return ModelSpec.from_config(json.loads(_config_of(model).read_text()))
        return ModelSpec.from_folder(resolve(model).path)
    except (UnsupportedModel, CheckpointError, OSError, json.JSONDecodeError) as error:
        known = ", ".join(SHAPES)
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise UnknownModel(f"{reason}; or name a folder with config.json, or one of {known}") from error


def _config_of(model: str) -> Path:
    """Download config.json from the hub: a few kilobytes."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(hf_hub_download(model, "config.json"))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        reason = reason_of(error, model)
        raise CheckpointError(f"config.json of {model} could not be fetched: {reason}") from None
