"""Which sizes of an engine follow from the memory of its GPU. Nodes of one cluster may have unlike GPUs, so
the router plans with those of one of them, and each worker with those of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.device.defaults import PREFILL_CHUNK, defaults_for


@dataclass(frozen=True, slots=True)
class SizesByMemory:
    """Each is either given by a setting, and stays, or follows from the memory."""

    chunk: bool = False
    graph_batch: bool = False
    graph_tokens: bool = False
    only_prefills: bool = False
    """Whether chunks have at most `PREFILL_CHUNK` tokens."""

    def on(self, engine: EngineConfig, total_bytes: int) -> EngineConfig:
        """`engine` for a GPU with this much memory."""
        suited = defaults_for(total_bytes, engine.tensor_parallel_size)
        scheduler, page = engine.scheduler, engine.page_size
        if self.chunk:
            chunk = chunk_of(total_bytes, engine.tensor_parallel_size, page, only_prefills=self.only_prefills)
            scheduler = replace(scheduler, chunk_budget=chunk)
        return replace(
            engine,
            scheduler=scheduler,
            cuda_graph_max_batch=suited.graph_batch if self.graph_batch else engine.cuda_graph_max_batch,
            cuda_graph_max_tokens=suited.graph_tokens if self.graph_tokens else engine.cuda_graph_max_tokens,
        )


def chunk_of(total_bytes: int, ranks: int, page_size: int, *, only_prefills: bool) -> int:
    """Token budget of a step, in whole pages."""
    tokens = defaults_for(total_bytes, ranks).chunk_budget
    return whole_pages(min(tokens, PREFILL_CHUNK) if only_prefills else tokens, page_size)


def whole_pages(tokens: int, page_size: int) -> int:
    """At least one."""
    return max(tokens // page_size, 1) * page_size
