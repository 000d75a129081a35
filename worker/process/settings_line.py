"""What a worker runs with, in one line, in the words of SGLang's and vLLM's logs."""

from __future__ import annotations

from engine.config import EngineConfig


def settings_line(
    config: EngineConfig, *, pool_tokens: int, context: int, free_bytes: int | None = None
) -> str:
    """`free_bytes`: of the GPU, beside weights, pool and graphs; None on a CPU. Values are those of flags.

    On a CPU without those that are not set, and those of CUDA graphs.
    """
    scheduler = config.scheduler
    chunk = scheduler.largest_chunk(context)
    chunking = (
        "Chunked prefill is disabled, prompts are computed whole."
        if chunk is None
        else f"Chunked prefill is enabled, with chunks of at most {chunk} tokens."
    )
    values: dict[str, object] = {
        "max_total_num_tokens": pool_tokens,
        "chunked_prefill_size": -1 if scheduler.chunk_budget is None else scheduler.chunk_budget,
        "max_prefill_tokens": scheduler.max_prefill_tokens,
        "max_running_requests": scheduler.max_running_requests,
        "context_len": context,
        "page_size": config.page_size,
        "schedule_policy": scheduler.policy.value,
        "batching": scheduler.batching.value,
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
        "max_num_partial_prefills": scheduler.max_partial_prefills,
        "step_target_ms": _ms(scheduler.step_target_s),
        "pause_target_ms": _ms(scheduler.pause_s),
    }
    if free_bytes is None:
        values = {name: value for name, value in values.items() if value is not None}
    else:
        values |= {
            "cuda_graph_max_bs": config.cuda_graph_max_batch,
            "cuda_graph_max_tokens": config.cuda_graph_max_tokens,
            "available_gpu_mem": f"{free_bytes / 1e9:.1f} GB",
        }
    return f"{chunking} " + ", ".join(
        f"{name}={'none' if value is None else value}" for name, value in values.items()
    )


def _ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:g}"
