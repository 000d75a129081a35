"""Models of images and text whose images are served, and how each spells that in config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from engine.model_config.config_fields import Config
from engine.model_config.config_file import of_the_text
from engine.model_config.parts.vision_spec import GridPositions, VisionSpec


def vision_of(config: Config) -> VisionSpec | None:
    """The vision part of a model, by the `model_type` of config.json; None: it has none, or is not known."""
    read = _FAMILIES.get(config.get("model_type", ""))
    return None if read is None or not config.get("vision_config") else read(config)


def _placeholder(config: Config, default: int) -> int:
    """Older checkpoints name it by another name; others leave out what is their class's default."""
    return int(config.get("image_token_id", config.get("image_token_index", default)))


def _tiles(config: Config) -> VisionSpec:
    arrays = frozenset({"pixel_values", "pixel_attention_mask"})
    return VisionSpec(placeholder=_placeholder(config, 128_257), arrays=arrays)


def _gemma3(config: Config) -> VisionSpec:
    return VisionSpec(placeholder=_placeholder(config, 262_144), arrays=_PIXELS, bidirectional=True)


def _gemma4(config: Config) -> VisionSpec:
    return VisionSpec(
        placeholder=_placeholder(config, 258_880),
        arrays=_PIXELS | {"image_position_ids"},
        bidirectional=of_the_text(config).get("use_bidirectional_attention") == "vision",
        causal_without_window=True,
    )


def _mistral3(config: Config) -> VisionSpec:
    return VisionSpec(placeholder=_placeholder(config, 10), arrays=_PIXELS | {"image_sizes"})


def _internvl(config: Config) -> VisionSpec:
    return VisionSpec(placeholder=_placeholder(config, 151_667), arrays=_PIXELS)


def _llava(config: Config) -> VisionSpec:
    return VisionSpec(placeholder=_placeholder(config, 32_000), arrays=_PIXELS | {"image_sizes"})


def _command(config: Config) -> VisionSpec:
    return VisionSpec(placeholder=_placeholder(config, 255_036), arrays=_PIXELS)


def _qwen2_vl(config: Config) -> VisionSpec:
    return _by_grid(config, 151_655, ())


def _glm4v(config: Config) -> VisionSpec:
    return _by_grid(config, 151_343, ())


def _qwen2_5_vl(config: Config) -> VisionSpec:
    frames, rows, columns = _sections(config, (16, 24, 24))
    return _by_grid(config, 151_655, (0,) * frames + (1,) * rows + (2,) * columns)


def _qwen3_vl(config: Config) -> VisionSpec:
    deepstack = len(config["vision_config"].get("deepstack_visual_indexes", (8, 16, 24)))
    return replace(_by_grid(config, 151_655, _interleaved(config, (24, 20, 20))), deepstack=deepstack)


def _qwen3_5(config: Config) -> VisionSpec:
    return _by_grid(config, 248_056, _interleaved(config, (11, 11, 10)))


def _by_grid(config: Config, placeholder: int, axes: tuple[int, ...]) -> VisionSpec:
    grid = GridPositions(axes=axes, merge=int(config["vision_config"].get("spatial_merge_size", 2)))
    return VisionSpec(placeholder=_placeholder(config, placeholder), arrays=_PIXELS, grid=grid)


def _interleaved(config: Config, default: tuple[int, int, int]) -> tuple[int, ...]:
    """Rows and columns turn every third frequency, from the second and the third on."""
    sections = _sections(config, default)
    axes = [index % 3 for index in range(sum(sections))]
    return tuple(axis if axis and index < 3 * sections[axis] else 0 for index, axis in enumerate(axes))


def _sections(config: Config, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Frequencies for frames, rows and columns."""
    text = of_the_text(config)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    frames, rows, columns = rope.get("mrope_section") or default
    return frames, rows, columns


_PIXELS: Final = frozenset({"pixel_values"})
_FAMILIES: Final[Mapping[str, Callable[[Config], VisionSpec]]] = {
    "aya_vision": _command,
    "cohere2_vision": _command,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "glm4v": _glm4v,
    "idefics3": _tiles,
    "internvl": _internvl,
    "llava": _llava,
    "mistral3": _mistral3,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen2_vl": _qwen2_vl,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "smolvlm": _tiles,
}
"""Readers of each `model_type` of config.json."""
