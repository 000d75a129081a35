"""Configuration of an engine: complete and validated. Nothing is read from the environment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

__all__ = ["PATIENCE", "Batching", "EngineConfig", "Policy"]

PATIENCE: Final = 64.0
"""Default of `EngineConfig.prompt_patience`."""


class Batching(Enum):
    MIXED = "mixed"
    """Decodes and prompt chunks share one forward pass."""
    SEPARATE = "separate"
    """A step is either all decodes or all prompt chunks; prompts first."""


class Policy(Enum):
    """Order in which waiting requests are admitted."""

    SHORTEST = "shortest"
    """Shortest prompt first, aged by `EngineConfig.prompt_patience`."""
    FCFS = "fcfs"
    """First come, first served."""
    LPM = "lpm"
    """Longest prefix match first."""
    LOF = "lof"
    """Longest output first."""
    DFS_WEIGHT = "dfs-weight"
    """Requests that share a cached subtree together (SGLang)."""
    RANDOM = "random"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    model_path: Path
    """A Hugging Face folder: config.json, safetensors, tokenizer.json."""
    device: str = "cpu"
    """"cpu", "cuda" or "cuda:N"."""
    dtype: str = "float32"
    """"float32", "bfloat16" or "float16"."""
    load_format: str = "auto"
    """"auto" or "dummy" (random weights, from the configuration alone)."""
    page_size: int = 16
    num_pages: int = 1024
    """0: as many as `kv_memory_fraction` leaves room for (GPUs only)."""
    kv_memory_fraction: float = 0.9
    """Share of the GPU's total memory that weights, activations and KV pool may take together."""
    max_model_len: int = 8192
    max_running_requests: int = 256
    chunk_budget: int | None = 512
    """Token budget of a step; None: chunking is off, prompts are computed whole."""
    itl_target_s: float | None = None
    """Target step time while requests decode: prefill chunks are sized to meet it."""
    token_tile: int = 1
    """Rows per tile of the device's GEMM kernels; steps full of prompts are rounded to whole tiles."""
    costly_context: float = math.inf
    """Context length at which attention costs as much as the rest of a prompt token."""
    long_prefill_token_threshold: int | None = None
    """Largest number of tokens of one prompt per step."""
    batching: Batching = Batching.MIXED
    policy: Policy = Policy.SHORTEST
    prompt_patience: float = PATIENCE
    """A prompt of n tokens is overtaken by at most n * prompt_patience tokens of shorter prompts that came
    later. Finite and above 0."""
    radix_cache: bool = True
    overlap: bool = False
    """Plan step N+1 while step N runs on the device."""
    max_waiting_requests: int = 4096
    tensor_parallel_size: int = 1
    """Ranks that share the model, each with a process and a device of its own."""
    attention_backend: str = "auto"
    """"auto", "torch", "cpu" (compiled kernels) or "flashinfer"."""
    cuda_graph_max_batch: int = 0
    """Largest decode batch captured as a CUDA graph; 0: none."""
    cuda_graph_max_tokens: int = 0
    """Largest step with prompts captured as piecewise CUDA graphs, in tokens; 0: none."""
    seed: int = 0
    """For dummy weights and the random policy."""
