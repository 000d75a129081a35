"""Loads the vision model of an engine that takes images."""

from __future__ import annotations

import logging

import torch

from engine.config import EngineConfig
from engine.media.encoder import MediaEncoder
from engine.media.support import image_refusal
from engine.model_config.model_spec import ModelSpec

logger = logging.getLogger(__name__)


def open_encoder(
    config: EngineConfig, spec: ModelSpec, device: torch.device, dtype: torch.dtype
) -> MediaEncoder | None:
    """Load the vision model, if there is one and images are taken. Raises WeightsError."""
    if spec.vision is None:
        return None
    if reason := image_refusal(config, spec):
        logger.info("requests with images are refused: %s", reason)
        return None
    from engine.media.tower import Tower  # imports transformers, an extra

    seed = config.seed if config.load_format == "dummy" else None
    tower = Tower(config.model_path, spec.vision, device=device, dtype=dtype, dummy_seed=seed)
    return MediaEncoder(tower, spec.vision, config.image_cache_bytes, device, dtype)
