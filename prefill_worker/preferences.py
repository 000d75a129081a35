"""Configuration of the workers that prefer to prefill."""

from __future__ import annotations

from dataclasses import replace

from engine.config import EngineConfig


def prefill_engine_config(engine: EngineConfig) -> EngineConfig:
    """No CUDA graphs of decode batches, since every step has prompts."""
    return replace(engine, cuda_graph_max_batch=0)
