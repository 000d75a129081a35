"""The time of a step on a GPU: a formula fitted to measured steps."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, Protocol

from engine.core.events import StepMeasured
from engine.core.plan import StepPlan
from router.placement import EVERYTHING, Reach, StepWork


class StepCosts(Protocol):
    """What a step costs, in seconds."""

    @property
    def reach(self) -> Reach:
        """Reach of the model's layers."""

    def device_s(self, plan: StepPlan) -> float:
        """On the device."""

    def host_s(self, plan: StepPlan) -> float:
        """On the host, until the device can begin."""

    def launch_s(self, plan: StepPlan) -> float:
        """On the host, once the device can begin."""


_MATRICES: Final = (
    (1.0, 3.45e-3),
    (64.0, 3.9e-3),
    (96.0, 4.75e-3),
    (160.0, 5.3e-3),
    (256.0, 6.8e-3),
    (396.0, 9.9e-3),
    (512.0, 12.45e-3),
    (1024.0, 22.4e-3),
    (2048.0, 46.0e-3),
    (16_384.0, 371.0e-3),
)
"""Seconds of all matrix products of a step, by number of rows. Up to 512: steps measured in the engine
(`benchmarks.gpu.decode`), less the other terms of `DeviceCosts`."""


_FP8_MATRICES: Final = (
    (1.0, 1.7e-3),
    (8.0, 2.35e-3),
    (16.0, 2.4e-3),
    (64.0, 3.05e-3),
    (160.0, 3.4e-3),
    (256.0, 4.0e-3),
    (512.0, 7.3e-3),
    (2048.0, 29.2e-3),
    (16_384.0, 236.0e-3),
)
"""The same in FP8. Up to 64 rows: measured steps; 512 and more: offline throughput; 160 and 256 follow the
curve of 16 bits."""

_INT4_MATRICES: Final = (
    (1.0, 2.45e-3),
    (8.0, 2.75e-3),
    (16.0, 3.4e-3),
    (64.0, 6.0e-3),
    (256.0, 13.7e-3),
    (512.0, 27.4e-3),
    (2048.0, 61.0e-3),
    (16_384.0, 386.0e-3),
)
"""The same in 4 bits, groups of 128. Up to 256 rows: measured steps; 512: offline throughput; above, the time
of 16 bits and of the weights' expansion, which does not grow."""

_MXFP4_MATRICES: Final = (
    (8.0, 2.1e-3),
    (32.0, 3.6e-3),
    (64.0, 5.0e-3),
    (256.0, 11.4e-3),
    (512.0, 22.9e-3),
    (2048.0, 61.0e-3),
    (16_384.0, 386.0e-3),
)
"""The same in MXFP4, which only experts have. 8 and 32 rows: an expert of gpt-oss-20b in steps of 64 and 256
requests, by the time of its products there; above, the curve of 4-bit integers in proportion, until expanding
the weights takes most of the time."""


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """Seconds. Implements StepCosts. The defaults are Llama-3.1-8B's shape on an H200."""

    matrices: tuple[tuple[float, float], ...] = _MATRICES
    """Rows and seconds, interpolated between; fewer rows take as long as the first."""
    padding: int = 1
    """Rows to whose multiple a step is padded."""
    context: float = 31e-9
    """To read the KV of one token of a decode's context."""
    pair: float = 1.1e-9
    """Attention, per pair of a prompt token and a token that it attends to."""
    reach: Reach = EVERYTHING
    state: float = 0.0
    """To read and write the recurrent states of a decode."""
    step: float = 0.5e-3
    """Everything else on the device."""
    prompts: float = 1.0e-3
    """Added by any prompt tokens."""
    host: float = 1.3e-3
    """Host time to plan and prepare a step."""
    host_prompts: float = 1.1e-3
    """Added by any prompt tokens."""
    host_request: float = 0.0
    """Added by each request."""
    launch: float = 0.0
    """Host time once the device can begin: a graph."""
    launch_prompts: float = 0.0
    """The same for a chain of graphs."""

    def seconds(self, work: StepWork) -> float:
        rows = -(-(work.prompt_tokens + work.decodes) // self.padding) * self.padding
        read = self.reach.of_step(work)
        seconds = self.step + self.of_matrices(rows)
        seconds += self.context * read.context_tokens + self.state * work.decodes
        return seconds + (self.prompts + self.pair * read.attention if work.prompt_tokens else 0.0)

    def of_matrices(self, rows: float) -> float:
        points = self.matrices
        at = min(max(bisect_left(points, (rows, 0.0)), 1), len(points) - 1)
        (low, fast), (high, slow) = points[at - 1], points[at]
        return max(fast, fast + (slow - fast) * (rows - low) / (high - low))

    def device_s(self, plan: StepPlan) -> float:
        work = StepMeasured.of(plan, 0.0)
        return self.seconds(
            StepWork(work.prompt_tokens, work.attention_pairs, work.decodes, work.context_tokens)
        )

    def host_s(self, plan: StepPlan) -> float:
        return (
            self.host
            + self.host_request * len(plan.chunks)
            + (self.host_prompts if plan.prompt_tokens else 0.0)
        )

    def launch_s(self, plan: StepPlan) -> float:
        return self.launch_prompts if plan.prompt_tokens else self.launch


H200_8B: Final = DeviceCosts()
H200_8B_FP8: Final = DeviceCosts(matrices=_FP8_MATRICES, step=1.0e-3)
"""`step` has the quantization of activations too, and the starts and ends of its kernels."""
H200_8B_INT4: Final = DeviceCosts(matrices=_INT4_MATRICES)
H200_8B_MXFP4: Final = DeviceCosts(matrices=_MXFP4_MATRICES)

ENGINE_H200_8B: Final = DeviceCosts(
    matrices=((1.0, 4.2e-3), (221.0, 4.2e-3), (16_384.0, 311.3e-3)),
    padding=32,
    context=34e-9,
    pair=1.05e-9,
    step=0.9e-3,
    prompts=1.1e-3,
    host_request=4e-6,
    launch=0.6e-3,
    launch_prompts=3.2e-3,
)
"""With the host's time to launch graphs: an earlier fit, to steps of one engine without a router."""

ENGINE_H200_70B_FP8: Final = DeviceCosts(
    matrices=(
        (1.0, 23.0e-3),
        (16.0, 24.0e-3),
        (64.0, 25.0e-3),
        (96.0, 26.0e-3),
        (160.0, 28.5e-3),
        (256.0, 37.0e-3),
        (512.0, 68.0e-3),
        (2048.0, 262.0e-3),
        (16_384.0, 2090.0e-3),
    ),
    context=78e-9,
    pair=5.5e-9,
    step=1.0e-3,
    prompts=0.6e-3,
    host_request=4e-6,
    launch=0.6e-3,
    launch_prompts=0.6e-3,
)
"""Llama-3.3-70B's shape in FP8 on an H200. Steps of up to 96 rows are those of a server under chat; more rows
are scaled from the prefill rate of an 8B model in FP8."""

H200_QWEN3_30B_FP8: Final = DeviceCosts(
    matrices=(
        (1.0, 4.5e-3),
        (16.0, 9.3e-3),
        (64.0, 12.0e-3),
        (128.0, 12.6e-3),
        (512.0, 15.5e-3),
        (1024.0, 21.0e-3),
        (2048.0, 33.0e-3),
        (16_384.0, 215.0e-3),
    ),
    context=24e-9,
    pair=0.55e-9,
    step=0.9e-3,
)
"""Qwen3-30B-A3B's shape in FP8 blocks on an H200: expert layers as measured, the
rest so that chat at 30 requests a second has the measured TPOT (17.5 ms) and TTFT (p50 47 ms, p99 328)."""
