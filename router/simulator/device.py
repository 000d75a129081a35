"""The time of a step on a GPU: a formula fitted to measured steps."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from engine.core.plan import ChunkKind, StepPlan
from router.placement import StepWork

__all__ = ["H200_8B", "DeviceCosts", "work_of"]


_MATRICES: Final = (
    (1, 3.45e-3),
    (64, 3.9e-3),
    (96, 4.75e-3),
    (160, 5.3e-3),
    (256, 6.8e-3),
    (396, 9.9e-3),
    (512, 12.45e-3),
    (1024, 22.4e-3),
    (2048, 46.0e-3),
    (16_384, 371.0e-3),
)
"""Seconds of all matrix products of a step, by number of rows. Up to 512: steps measured in the engine
(`benchmarks.gpu_decode`), less the other terms of `DeviceCosts`."""


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """Seconds. The defaults are Llama-3.1-8B's shape on an H200."""

    matrices: tuple[tuple[int, float], ...] = _MATRICES
    """Rows and seconds, interpolated between; fewer rows take as long as the first."""
    context: float = 31e-9
    """To read the KV of one token of a decode's context."""
    pair: float = 1.1e-9
    """Attention, per pair of a prompt token and a token that it attends to."""
    step: float = 0.5e-3
    """Everything else on the device."""
    prompts: float = 1.0e-3
    """Added by any prompt tokens."""
    host: float = 1.3e-3
    """Host time to plan and prepare a step."""
    host_prompts: float = 1.1e-3
    """Added by any prompt tokens."""

    def seconds(self, work: StepWork) -> float:
        seconds = self.step + self.of_matrices(work.prompt_tokens + work.decodes)
        seconds += self.context * work.context_tokens
        return seconds + (self.prompts + self.pair * work.attention if work.prompt_tokens else 0.0)

    def of_matrices(self, rows: float) -> float:
        points = self.matrices
        at = min(max(bisect_left(points, (rows, 0.0)), 1), len(points) - 1)
        (low, fast), (high, slow) = points[at - 1], points[at]
        return max(fast, fast + (slow - fast) * (rows - low) / (high - low))


H200_8B = DeviceCosts()


def work_of(plan: StepPlan) -> StepWork:
    prompt_tokens = decodes = context = 0
    attention = 0.0
    for chunk in plan.chunks:
        if chunk.kind is ChunkKind.PREFILL:
            prompt_tokens += chunk.length
            attention += StepWork.attention_of(chunk.start, chunk.length)
        else:
            decodes += 1
            context += chunk.start
    return StepWork(prompt_tokens, attention, decodes, context)
