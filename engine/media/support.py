"""Whether an engine takes images, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import prod

from engine.config import EngineConfig
from engine.core.media import MediaItem
from engine.core.request import Request
from engine.errors import UnservableRequest
from engine.model_config.parts.vision_spec import VisionSpec
from engine.model_config.served_model import ServableSpec


def image_refusal(config: EngineConfig, spec: ServableSpec) -> str:
    """Why images are refused; empty: they are taken."""
    if spec.vision is None:
        return "it is served as a model of text"
    if config.language_model_only:
        return "it was started without its vision model (--language-model-only)"
    if config.pooling is not None:
        return "it computes vectors, of text"
    if find_spec("transformers") is None:
        return "its vision model runs in transformers, which is not installed"
    return ""


def check_images(request: Request, config: EngineConfig, spec: ServableSpec) -> None:
    """Raises UnservableRequest if the model cannot take the images of a request. O(their positions)."""
    vision = spec.vision
    if (reason := image_refusal(config, spec)) or vision is None:
        raise UnservableRequest(f"this model takes no images: {reason}")
    largest = config.scheduler.largest_chunk(config.max_model_len)
    for item in request.media:
        problem = _problem(item, request.prompt[item.offset : item.end], vision, largest)
        if problem:
            raise UnservableRequest(f"the image at position {item.offset} {problem}")


def _problem(item: MediaItem, tokens: Sequence[int], vision: VisionSpec, largest: int | None) -> str:
    """Why an item cannot be computed; empty: it can. `largest`: tokens of a chunk at most."""
    placeholders = sum(token == vision.placeholder for token in tokens)
    names = {array.name for array in item.arrays}
    if not placeholders:
        return f"has no placeholder {vision.placeholder}"
    if unknown := names - vision.arrays:
        return f"has {', '.join(sorted(unknown))}, which this model does not take"
    if names and "pixel_values" not in names:
        return "has no pixel_values"
    if vision.grid is not None:
        merged = vision.grid.merge**2
        if not item.grid or placeholders != item.length or item.length * merged != prod(item.grid):
            return f"has {placeholders} placeholders in {item.length} tokens for a grid of {[*item.grid]}"
        shapes = [array.shape for array in item.arrays if array.name == "pixel_values"]
        if shapes and shapes[0][:1] != (prod(item.grid),):
            return f"has patches of the shape {[*shapes[0]]} for a grid of {[*item.grid]}"
    if vision.bidirectional and largest is not None and item.length > largest:
        return f"has {item.length} tokens, of a step of {largest}; raise --chunked-prefill-size"
    return ""
