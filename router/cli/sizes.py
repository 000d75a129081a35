"""Formats the sizes that workers report, for the router's output at start."""

from __future__ import annotations

from collections.abc import Iterable

from rpc.baton.v1 import worker_pb2

__all__ = ["sizes"]


def sizes(workers: Iterable[worker_pb2.WorkerInfo]) -> list[str]:
    """One line per group of equal workers: pool, context, chunk, running requests, ITL target, graphs."""
    groups: dict[str, list[str]] = {}
    for info in workers:
        groups.setdefault(_described(info), []).append(info.worker_id)
    return [f"{_names(names)}: {text}" for text, names in groups.items()]


def _described(info: worker_pb2.WorkerInfo) -> str:
    chunk = f"{info.chunked_prefill_size:,} tokens a step" if info.chunked_prefill_size else "chunking off"
    graphs = (
        f"CUDA graphs up to {info.cuda_graph_max_bs} decodes and {info.cuda_graph_max_tokens:,} prefill"
        " tokens"
        if info.cuda_graph_max_bs or info.cuda_graph_max_tokens
        else "no CUDA graphs"
    )
    target = f"ITL target {info.step_target_s * 1000:g} ms" if info.step_target_s else "no ITL target"
    if info.pause_target_s:
        target += f" (pauses of {info.pause_target_s * 1000:g} ms)"
    return (
        f"KV pool {info.num_pages * info.page_size:,} tokens in pages of {info.page_size},"
        f" context {info.max_model_len:,}, {chunk}, {info.max_running_requests} running requests, {target},"
        f" {graphs}"
    )


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
