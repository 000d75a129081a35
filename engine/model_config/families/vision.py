"""Models of images and text whose images are served, and how each spells that in config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from engine.model_config.config_fields import Config
from engine.model_config.parts.vision_spec import VisionSpec


def vision_of(config: Config) -> VisionSpec | None:
    """The vision part of a model, by the `model_type` of config.json; None: it has none, or is not known."""
    read = _FAMILIES.get(config.get("model_type", ""))
    return None if read is None or not config.get("vision_config") else read(config)


def _placeholder(config: Config) -> int:
    return int(config["image_token_id"] if "image_token_id" in config else config["image_token_index"])


def _tiles(config: Config) -> VisionSpec:
    arrays = frozenset({"pixel_values", "pixel_attention_mask"})
    return VisionSpec(placeholder=_placeholder(config), arrays=arrays)


_FAMILIES: Final[Mapping[str, Callable[[Config], VisionSpec]]] = {
    "idefics3": _tiles,
    "smolvlm": _tiles,
}
