"""Time of attention of prompt chunks, by kernel: see engine/mixers/attention/kernel_choice.py.

    python -m benchmarks.micro.gpu_chunks --output FILE.json

Microseconds per layer with FA3, with FA2 (which splits contexts), and with FA3 on a contiguous copy, for one
chunk at the end of a context, over chunk and context lengths, and for a few batches. Heads are those of
Llama-3.1-8B.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from rich.progress import track

from benchmarks.lib.command import command
from common.kv_groups import full_group
from engine.core.batch.block_tables import BlockTables, starts_of
from engine.core.batch.step_inputs import Ints
from engine.kv.cache.pool import KVPool
from engine.mixers.attention import flashinfer_chunks
from engine.mixers.attention.flashinfer_chunks import ChunkAttention, ChunkWorkspace
from engine.mixers.attention.flashinfer_kernels import Heads
from engine.mixers.attention.kernel_choice import splits_contexts
from engine.modeling.layers.layer_attention import LayerAttention

_HEADS: Final = Heads(32, 8, 128)
_PAGE_SIZE: Final = 16
_NUM_PAGES: Final = 8192
_LAYERS: Final = 4
_LENGTHS: Final = (16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 768, 1024)
_CONTEXTS: Final = (512, 1024, 2048, 4096, 8192, 16384, 32768)
_BATCHES: Final = (
    ((200, 200), (150, 150)),
    ((300, 300), (64, 20_000)),
    ((64, 20_000), (64, 8_000)),
    ((100, 100), (100, 600), (100, 1_000)),
    ((250, 250), (250, 2_000)),
    ((30, 700), (400, 400)),
    ((128, 1_200), (200, 200)),
)
"""Length and context of each chunk."""
_RUNS: Final = 24
_ROUNDS: Final = 5


def measure(attention: ChunkAttention, pool: KVPool, lengths: Ints, contexts: Ints) -> dict[str, float]:
    """Microseconds a layer by kernel: the best of a few rounds, each a graph of some runs."""
    counts = -(-contexts // _PAGE_SIZE)
    pages = np.random.default_rng(0).permutation(_NUM_PAGES)[: int(counts.sum())]
    lists, rows = BlockTables(pages, starts_of(counts)), starts_of(lengths)
    q = torch.randn(int(rows[-1]), _HEADS.query, _HEADS.dim, device=pool.tensor.device, dtype=torch.bfloat16)
    out = torch.empty_like(q)

    def run() -> None:
        for index in range(_RUNS):
            attention.run(0, q, pool.layer(index % _LAYERS), out, None)

    times = {}
    for name, splits, worth_a_copy in (("fa2", True, 0), ("fa3", False, 1 << 30), ("fa3, copied", False, 0)):
        choice: dict[str, Any] = {
            "splits_contexts": lambda *_, splits=splits: splits,
            "_WORTH_A_COPY": worth_a_copy,
        }
        with patch.multiple(flashinfer_chunks, **choice):
            attention.prepare(rows, contexts, [lists])
        times[name] = round(1e3 * _milliseconds(run) / _RUNS, 1)
    return times


def _milliseconds(run: Callable[[], None]) -> float:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    run()  # loads the kernels
    torch.cuda.synchronize()
    graph, best = torch.cuda.CUDAGraph(), float("inf")
    with torch.cuda.stream(stream):
        with torch.cuda.graph(graph, stream=stream):
            run()
        for _ in range(_ROUNDS):
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            began.record()
            graph.replay()
            ended.record()
            ended.synchronize()
            best = min(best, began.elapsed_time(ended))
    return best


@torch.inference_mode()
def main() -> None:
    parser = command("micro.gpu_chunks", __doc__)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    pool = KVPool(
        num_pages=_NUM_PAGES,
        groups=full_group(_LAYERS),
        num_kv_heads=_HEADS.kv,
        head_dim=_HEADS.dim,
        page_size=_PAGE_SIZE,
        dtype=torch.bfloat16,
        device="cuda",
    )
    pool.tensor.normal_()
    rule = LayerAttention(scale=_HEADS.dim**-0.5)
    attention = ChunkAttention(pool, _HEADS, ChunkWorkspace(pool, _HEADS), rule)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    alone = [
        ((length, context),)
        for length in _LENGTHS
        for context in sorted({length, *_CONTEXTS})
        if context >= length
    ]
    results = []
    for chunks in track([*alone, *_BATCHES], "Chunks"):
        lengths, contexts = np.array(chunks, dtype=np.int64).T
        splits = splits_contexts(lengths, contexts, _HEADS.query, multiprocessors)
        result = {"chunks": chunks, "us": measure(attention, pool, lengths, contexts), "splits": splits}
        results.append(result)
        print(json.dumps(result), flush=True)
    if options.output:
        rows = ",\n ".join(json.dumps(result) for result in results)
        options.output.write_text(f"[{rows}]\n")


if __name__ == "__main__":
    main()
