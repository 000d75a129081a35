"""Gated delta nets over prompt chunks on Hopper: our kernels, which other GPUs run, and flashinfer's.

    python -m benchmarks.gpu.delta_chunks

Microseconds of the recurrence of a layer in the shape of Qwen3-Next, with its convolution and the copies of
states, measured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
import torch

from engine.core.batch.batch import Batch, StateBatch
from engine.core.request_state import NO_SLOT
from engine.kv.cache.state_pool import StatePool
from engine.mixers.recurrence.triton_recurrence import TritonRecurrence
from engine.model_config.parts.recurrent_spec import RecurrentSpec
from engine.modeling.layers.recurrent import RecurrentWeights

SPEC: Final = RecurrentSpec(
    layers=frozenset({0}), key_heads=16, value_heads=32, key_dim=128, value_dim=128, kernel=4
)
PROMPTS: Final = {"1 x 2048": [2048], "1 x 8192": [8192], "4 x 2048": [2048] * 4, "32 x 256": [256] * 32}
_REPEATED: Final = 20


def microseconds(compute: Callable[[], torch.Tensor]) -> float:
    """Median of three replays of a graph of `_REPEATED` calls, for one of them."""
    compute()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_REPEATED):
            compute()
    times: list[float] = []
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / _REPEATED)
    return sorted(times[1:])[1]


def batch_of(lengths: Sequence[int]) -> Batch:
    """Prompts from their start, each with a slot for its state."""
    count, indptr = len(lengths), np.concatenate([[0], np.cumsum(lengths)])
    none, unused = np.full(count, NO_SLOT), torch.empty(0, dtype=torch.int64)
    states = StateBatch(
        none, np.arange(count), none, np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    )
    return Batch(
        rows=torch.zeros((2, sum(lengths)), dtype=torch.int64, device="cuda"),
        num_chunks=count,
        query_indptr=indptr,
        context_lens=np.diff(indptr),
        groups=[],
        sample_rows=unused,
        sample_slots=unused,
        scored_rows=unused,
        pending_rows=unused,
        pending_slots=unused,
        states=states,
    )


def measure(lengths: Sequence[int]) -> tuple[float, float, float]:
    """Ours, flashinfer's, and how far their results are apart."""
    batch, slot_bytes = batch_of(lengths), -(-SPEC.state_bytes(2) // 256) * 256
    memory = torch.zeros(len(lengths) + 1, slot_bytes, dtype=torch.uint8, device="cuda")
    pool = StatePool(memory, SPEC, torch.bfloat16)
    mixed = torch.randn(sum(lengths), SPEC.mixed_size, device="cuda").bfloat16()
    decays = -torch.rand(len(mixed), SPEC.value_heads, device="cuda") * 0.2
    beta = torch.rand(len(mixed), SPEC.value_heads, device="cuda")
    kernel = torch.randn(SPEC.mixed_size, 1, SPEC.kernel, device="cuda").bfloat16()
    times, results = [], []
    for flashinfer in (False, True):
        recurrence = TritonRecurrence(pool, flashinfer=flashinfer)
        recurrence.prepare(batch)
        compute = partial(recurrence.recur, 0, mixed, decays, beta, RecurrentWeights(kernel))
        results.append(compute().float())
        times.append(microseconds(compute))
    apart = (results[0] - results[1]).norm() / results[0].norm()
    return times[0], times[1], float(apart)


def main() -> None:
    print("| prompts | ours, us | flashinfer's, us | ratio | apart |\n| --- | --- | --- | --- | --- |")
    for name, lengths in PROMPTS.items():
        ours, theirs, apart = measure(lengths)
        print(f"| {name} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.1f} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    main()
