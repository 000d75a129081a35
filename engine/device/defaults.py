"""Chunk and graph sizes that suit a GPU, by its memory. Free of torch.

Chunks and decode graphs are SGLang's, at SGLang's bounds (`server_args.py`, `_handle_gpu_memory_settings`),
except for GPUs of 90 to 160 GB: SGLang has 8,192 and 256 there, and all figures on an H200 were measured with
16,384 and 512. Beside decodes the ITL target bounds the chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

GPU_TOKEN_TILE: Final = 128
"""Rows in a tile of most of cuBLAS's kernels."""
PREFILL_CHUNK: Final = 2048
"""Default token budget of a prefill worker. A short prompt waits for the step in flight, and an H200 prefills
as many tokens per second with 2,048 per step as with 16,384."""
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class DeviceDefaults:
    chunk_budget: int
    """Token budget of a step; larger GPUs need more to be busy."""
    graph_batch: int
    """Largest decode batch captured as a CUDA graph."""
    graph_tokens: int
    """Tokens of the largest step with prompts that is captured: more keep the device busy for longer than
    the host needs to launch them one by one."""


_BY_MEMORY: Final = (
    # GiB below which, chunk, largest graph of decodes with TP below 4, and from 4 on, largest of mixed steps
    (20, 2048, 8, 8, 256),  # T4, 4080
    (35, 2048, 24, 80, 256),  # A10, 4090, 5090
    (60, 4096, 32, 160, 512),  # A100 40 GB, L40
    (90, 8192, 256, 512, 2048),  # H100, A100 80 GB
    (math.inf, 16384, 512, 512, 2048),  # H200, B200, MI300
)


def defaults_for(total_bytes: int, tp_size: int = 1) -> DeviceDefaults:
    """Defaults for one of `tp_size` GPUs with this much memory each. `graph_tokens` are measured values."""
    chunk, graph, graph_tp, tokens = next(sizes for below, *sizes in _BY_MEMORY if total_bytes < below * _GIB)
    return DeviceDefaults(chunk, graph_tp if tp_size >= 4 else graph, tokens)
