"""Enumerates the ways to run a model on N GPUs that are simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from common.kv_groups import KVGroup, RequestPages
from engine.device.defaults import PREFILL_CHUNK
from engine.model_config.model_spec import ModelSpec
from router.config.choices import Mode
from router.placement import Targets
from simulator.deployment import TUNED_STEP_SHARE, Deployment
from simulator.planner.costs import Basis, WorkerCosts, costs_of
from simulator.planner.hardware import GpuModel

_MIXED_CHUNK: Final = 16_384
_LARGE_PREFILL_CHUNK: Final = 8192
_DEFAULT_STEP_S: Final = 0.020
_MOST_RANKS: Final = 8
_PAGE: Final = 16


class DoesNotFit(ValueError):
    """No worker of these GPUs can hold the model and one request."""


@dataclass(frozen=True, slots=True)
class Candidate:
    deployment: Deployment
    ranks: int
    chunk: int
    """Token budget of a step; with disagg, of a prefill worker's step."""
    step_s: float | None
    """Target time of steps with decodes, if a flag is needed to set it."""
    basis: Basis

    @property
    def mode(self) -> Mode:
        return self.deployment.mode

    @property
    def workers(self) -> int:
        return self.deployment.prefill + self.deployment.decode

    @property
    def split(self) -> str:
        """P:D, or the number of workers in mixed mode."""
        if self.mode is Mode.MIXED:
            return f"x{self.workers}"
        return f"{self.deployment.prefill}:{self.deployment.decode}"

    def flags(self, targets: Targets) -> list[str]:
        """Flags of the `router` command."""
        deployment = self.deployment
        flags = ["--mode", self.mode.value]
        if self.mode is Mode.MIXED:
            flags += ["--decode-workers", str(self.workers)]
        else:
            flags += ["--prefill-workers", str(deployment.prefill)]
            flags += ["--decode-workers", str(deployment.decode)]
        if self.ranks > 1:
            flags += ["--tensor-parallel-size", str(self.ranks)]
        if self.mode is Mode.ADAPTIVE:
            flags += ["--ttft-target-ms", f"{1e3 * targets.ttft_s:g}"]
            flags += ["--itl-target-ms", f"{1e3 * targets.tpot_s:g}"]
        elif self.step_s is not None:
            flags += ["--itl-target-ms", f"{1e3 * self.step_s:g}"]
        if self.mode is Mode.DISAGG and self.chunk != PREFILL_CHUNK:
            flags += ["--prefill-chunked-prefill-size", str(self.chunk)]
        return flags


def candidates(
    model: ModelSpec, gpu: GpuModel, gpus: int, targets: Targets, longest: int, *, radix_cache: bool
) -> list[Candidate]:
    """All candidates, ordered by tensor parallelism, mode and split.

    `longest`: tokens of the longest request, prompt and answer. Raises DoesNotFit.
    """
    found: list[Candidate] = []
    reasons: list[str] = []
    groups = model.kv_groups
    pages = RequestPages.of_groups(_PAGE, groups, _MIXED_CHUNK)
    ranks = 1
    while ranks <= min(gpus, _MOST_RANKS):
        if gpus % ranks == 0 and model.num_heads % ranks == 0:
            costs = costs_of(model, gpu, ranks)
            num_pages = max(costs.kv_tokens, 0) // _PAGE * len(groups)
            if pages.of(longest + _PAGE) > num_pages:
                room = pages.largest_request(num_pages, longest)
                reasons.append(f"{ranks} GPU{'s' * (ranks > 1)} a worker leave KV room for {room:,} tokens")
            else:
                found += _of_ranks(costs, groups, gpus // ranks, ranks, targets, radix_cache)
        ranks *= 2
    if not found:
        raise DoesNotFit(f"{'; '.join(reasons)}; the longest request has {longest:,}")
    return found


def _of_ranks(
    costs: WorkerCosts,
    groups: tuple[KVGroup, ...],
    workers: int,
    ranks: int,
    targets: Targets,
    radix_cache: bool,
) -> Iterator[Candidate]:
    def candidate(mode: Mode, prefill: int, chunk: int, step_s: float | None = None) -> Candidate:
        deployment = Deployment(
            mode=mode,
            prefill=prefill,
            decode=workers - prefill,
            targets=targets,
            chunk_tokens=chunk,
            step_target_s=step_s,
            radix_cache=radix_cache,
            device=costs.device,
            link=costs.link,
            groups=groups,
            kv_tokens=costs.kv_tokens,
            max_running=costs.max_running,
            state_slots=costs.state_slots,
        )
        return Candidate(deployment, ranks, chunk, step_s, costs.basis)

    yield candidate(Mode.MIXED, 0, _MIXED_CHUNK)
    tuned = round(TUNED_STEP_SHARE * targets.tpot_s, 4)
    if abs(tuned - _DEFAULT_STEP_S) > 0.1 * _DEFAULT_STEP_S:
        yield candidate(Mode.MIXED, 0, _MIXED_CHUNK, tuned)
    for prefill in range(1, workers):
        for chunk in (PREFILL_CHUNK, _LARGE_PREFILL_CHUNK):
            yield candidate(Mode.DISAGG, prefill, chunk)
    if workers > 1:
        yield candidate(Mode.ADAPTIVE, workers // 2, PREFILL_CHUNK)
