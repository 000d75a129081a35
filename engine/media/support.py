"""Whether an engine takes images, and if not, why."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.core.request import Request
from engine.errors import UnservableRequest
from engine.media.encoder import MediaEncoder
from engine.model_config.model_spec import ModelSpec
from engine.model_config.served_model import ServableSpec


def image_refusal(config: EngineConfig, spec: ServableSpec) -> str:
    """Why images are refused; empty: they are taken."""
    if spec.vision is None:
        return "it is served as a model of text"
    if config.language_model_only:
        return "it was started without its vision model (--language-model-only)"
    if config.tensor_parallel_size > 1:
        return "they are not computed with --tensor-parallel-size above 1"
    if config.pooling is not None:
        return "it computes vectors, of text"
    if find_spec("transformers") is None:
        return "its vision model runs in transformers, which is not installed"
    return ""


def check_images(request: Request, config: EngineConfig, spec: ServableSpec) -> None:
    """Raises UnservableRequest if the model cannot take the images of a request. O(their positions)."""
    if (reason := image_refusal(config, spec)) or spec.vision is None:
        raise UnservableRequest(f"this model takes no images: {reason}")
    for item in request.media:
        if not any(token == spec.vision.placeholder for token in request.prompt[item.offset : item.end]):
            raise UnservableRequest(
                f"the image at position {item.offset} has no placeholder {spec.vision.placeholder}"
            )
        unknown = {array.name for array in item.arrays} - spec.vision.arrays
        if unknown:
            raise UnservableRequest(f"this model takes no {', '.join(sorted(unknown))} of an image")


def open_encoder(
    config: EngineConfig, folder: Path, spec: ModelSpec, device: torch.device, dtype: torch.dtype
) -> MediaEncoder | None:
    """Load the vision model of `folder`, if there is one and images are taken. Raises WeightsError."""
    if spec.vision is None or image_refusal(config, spec):
        return None
    from engine.media.tower import Tower  # imports transformers, an extra

    seed = config.seed if config.load_format == "dummy" else None
    tower = Tower(folder, spec.vision, device=device, dtype=dtype, dummy_seed=seed)
    return MediaEncoder(tower, spec.vision, config.image_cache_bytes, device)
