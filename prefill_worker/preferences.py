"""Configuration specific to prefill workers."""

from __future__ import annotations

from dataclasses import replace

from engine.config import EngineConfig

__all__ = ["prefer"]


def prefer(engine: EngineConfig) -> EngineConfig:
    """No CUDA graphs of decode batches, since every step has prompts."""
    return replace(engine, cuda_graph_max_batch=0)
