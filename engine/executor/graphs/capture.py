"""Captures the CUDA graphs that an attention backend and the options of a worker allow."""

from __future__ import annotations

import torch

from common.progress import Progress
from engine.config import EngineConfig
from engine.executor.forward import Forward
from engine.executor.graphs.cuda_graphs import DecodeGraphs
from engine.executor.graphs.piecewise_graphs import PiecewiseGraphs
from engine.kv.cache.pool import KVPool
from engine.mixers.attention import AttentionBackend, GraphableAttention, PiecewiseAttention
from engine.modeling.models.base import CausalLM
from engine.parallel.communicator import Communicator


def captured_forwards(
    model: CausalLM,
    attention: AttentionBackend,
    config: EngineConfig,
    pool: KVPool,
    communicator: Communicator,
    progress: Progress,
) -> list[Forward]:
    """Decode graphs and piecewise graphs, in this order. Takes seconds; empty if the backend has none."""
    forwards: list[Forward] = []
    if isinstance(attention, GraphableAttention):
        largest_batch = min(config.cuda_graph_max_batch, config.max_decode_rows)
        if largest_batch:
            forwards.append(
                DecodeGraphs(
                    model,
                    attention,
                    largest=largest_batch,
                    num_groups=len(pool.groups),
                    scratch_slot=pool.scratch_page * config.page_size,
                    max_model_len=config.max_model_len,
                    device=torch.device(config.device),
                    progress=progress,
                )
            )
    if isinstance(attention, PiecewiseAttention) and config.cuda_graph_max_tokens:
        forwards.append(
            PiecewiseGraphs(
                model,
                attention,
                largest=config.cuda_graph_max_tokens,
                scratch_slot=pool.scratch_page * config.page_size,
                groups=[group for group, _ in pool.places],
                communicator=communicator,
                progress=progress,
            )
        )
    return forwards
