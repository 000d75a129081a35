"""Settings for prefill or decode workers only. None: the setting for all workers applies."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from router.config.option import Heading

_role = Heading("settings of a role")
_PREFILL: Final = "prefill workers"
_DECODE: Final = "decode workers"


def _like(base: str, workers: str, metavar: str, **more: Any) -> Any:
    return _role(None, f"{base} of {workers} (default: {base})", metavar, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    prefill_tensor_parallel_size: int | None = _like("--tensor-parallel-size", _PREFILL, "N")
    decode_tensor_parallel_size: int | None = _like(
        "--tensor-parallel-size", _DECODE, "N", aliases=("--disaggregation-decode-tp",)
    )
    prefill_expert_parallel_size: int | None = _like("--expert-parallel-size", _PREFILL, "N")
    decode_expert_parallel_size: int | None = _like("--expert-parallel-size", _DECODE, "N")
    prefill_accelerator: str | None = _like("--accelerator", _PREFILL, "TYPE")
    decode_accelerator: str | None = _like("--accelerator", _DECODE, "TYPE")
    prefill_chunked_prefill_size: int | None = _role(
        None,
        "--chunked-prefill-size of prefill workers; -1: whole prompts"
        " (default: --chunked-prefill-size, or else at most 2048, as for all workers of --mode adaptive)",
        "TOKENS",
    )
    decode_chunked_prefill_size: int | None = _like("--chunked-prefill-size", _DECODE, "TOKENS")
    prefill_kv_pool_tokens: int | None = _like("--kv-pool-tokens", _PREFILL, "TOKENS")
    decode_kv_pool_tokens: int | None = _like("--kv-pool-tokens", _DECODE, "TOKENS")
    prefill_kv_memory_fraction: float | None = _like("--kv-memory-fraction", _PREFILL, "0..1")
    decode_kv_memory_fraction: float | None = _like("--kv-memory-fraction", _DECODE, "0..1")
    prefill_cuda_graph_max_tokens: int | None = _like("--cuda-graph-max-tokens", _PREFILL, "TOKENS", least=0)
    decode_cuda_graph_max_tokens: int | None = _like("--cuda-graph-max-tokens", _DECODE, "TOKENS", least=0)
    decode_cuda_graph_max_bs: int | None = _like("--cuda-graph-max-bs", _DECODE, "N", least=0)

    def of(self, prefix: str) -> dict[str, Any]:
        """The given settings of the role with this prefix, by the name of the setting for all workers."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name.removeprefix(f"{prefix}_"): value
            for name, value in given.items()
            if name.startswith(f"{prefix}_") and value is not None
        }
