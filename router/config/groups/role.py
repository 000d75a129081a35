"""Settings for prefill or decode workers only. None: the setting for all workers applies."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

from router.config.option import Option

__all__ = ["RoleSettings"]

_PREFILL: Final = "prefill workers"
_DECODE: Final = "decode workers"


def _like(base: str, workers: str, metavar: str, **more: Any) -> Option:
    return Option("settings of a role", f"{base} of {workers} (default: {base})", metavar, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    prefill_tensor_parallel_size: Annotated[int | None, _like("--tensor-parallel-size", _PREFILL, "N")] = None
    decode_tensor_parallel_size: Annotated[
        int | None, _like("--tensor-parallel-size", _DECODE, "N", aliases=("--disaggregation-decode-tp",))
    ] = None
    prefill_expert_parallel_size: Annotated[int | None, _like("--expert-parallel-size", _PREFILL, "N")] = None
    decode_expert_parallel_size: Annotated[int | None, _like("--expert-parallel-size", _DECODE, "N")] = None
    prefill_accelerator: Annotated[str | None, _like("--accelerator", _PREFILL, "TYPE")] = None
    decode_accelerator: Annotated[str | None, _like("--accelerator", _DECODE, "TYPE")] = None
    prefill_chunked_prefill_size: Annotated[
        int | None,
        Option(
            "settings of a role",
            "--chunked-prefill-size of prefill workers; -1: whole prompts"
            " (default: --chunked-prefill-size, or else at most 2048, as for all workers of --mode adaptive)",
            "TOKENS",
        ),
    ] = None
    decode_chunked_prefill_size: Annotated[int | None, _like("--chunked-prefill-size", _DECODE, "TOKENS")] = (
        None
    )
    prefill_kv_pool_tokens: Annotated[int | None, _like("--kv-pool-tokens", _PREFILL, "TOKENS")] = None
    decode_kv_pool_tokens: Annotated[int | None, _like("--kv-pool-tokens", _DECODE, "TOKENS")] = None
    prefill_kv_memory_fraction: Annotated[float | None, _like("--kv-memory-fraction", _PREFILL, "0..1")] = (
        None
    )
    decode_kv_memory_fraction: Annotated[float | None, _like("--kv-memory-fraction", _DECODE, "0..1")] = None
    prefill_cuda_graph_max_tokens: Annotated[
        int | None, _like("--cuda-graph-max-tokens", _PREFILL, "TOKENS", least=0)
    ] = None
    decode_cuda_graph_max_tokens: Annotated[
        int | None, _like("--cuda-graph-max-tokens", _DECODE, "TOKENS", least=0)
    ] = None
    decode_cuda_graph_max_bs: Annotated[int | None, _like("--cuda-graph-max-bs", _DECODE, "N", least=0)] = (
        None
    )

    def of(self, prefix: str) -> dict[str, Any]:
        """The given settings of the role with this prefix, by the name of the setting for all workers."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name.removeprefix(f"{prefix}_"): value
            for name, value in given.items()
            if name.startswith(f"{prefix}_") and value is not None
        }
