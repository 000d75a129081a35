"""What a worker that only computes prompts is configured with."""

from __future__ import annotations

from dataclasses import replace

from engine.config import EngineConfig

__all__ = ["prefer"]


def prefer(engine: EngineConfig) -> EngineConfig:
    """No CUDA graphs of pure decode batches: every step has prompts in it."""
    return replace(engine, cuda_graph_max_batch=0)
