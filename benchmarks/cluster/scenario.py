"""Deployments and loads by name: what the command line and the tests put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from benchmarks.cluster.simulation import ClusterSpec, Simulation
from benchmarks.cluster.traffic import Arrival, bursts, chats, day, merged, poisson
from benchmarks.cluster.worker import WorkerSettings
from benchmarks.lib.workload import LogNormal, Uniform
from engine.config import PATIENCE
from engine.device.defaults import PREFILL_CHUNK
from router.placement import (
    AdaptivePlacement,
    DisaggPlacement,
    MixedPlacement,
    PlacementPolicy,
    Preference,
    Targets,
)
from router.workers.capacity import prefix_aware

__all__ = ["LOADS", "Deployment", "Mode"]

_DEFAULT_STEP_S: Final = 0.020
_MIXED_CHUNK: Final = 16_384
_ADAPTIVE_PACE: Final = 0.95
"""Of the target that steps with decodes and prompts are kept near: TPOT has to stay below it."""
_SMALL_POOL: Final = 64
"""From so many workers on, pages are larger, so that their accounts fit into memory."""


_STRICT: Final = Targets(ttft_s=0.5, itl_s=0.015)


class Mode(Enum):
    MIXED = "mixed"
    DISAGG = "disagg"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`prefill` and `decode` workers under a policy; None: the mode's default."""

    mode: Mode
    prefill: int = 1
    decode: int = 1
    targets: Targets = _STRICT
    chunk_tokens: int | None = None
    step_target_s: float | None = None
    radix_cache: bool = False
    patience: float = PATIENCE

    @property
    def name(self) -> str:
        if self.mode is Mode.MIXED:
            workers = f"x{self.prefill + self.decode}"
            step = f" step {1e3 * self.step_target_s:.0f} ms" if self.step_target_s else ""
            return f"mixed {workers}{step}"
        chunk = f" chunk {self.chunk_tokens}" if self.chunk_tokens else ""
        return f"{self.mode.value} {self.prefill}:{self.decode}{chunk}"

    def simulation(self) -> Simulation:
        workers = self.prefill + self.decode
        adaptive = self.mode is Mode.ADAPTIVE
        step = self.step_target_s or (_ADAPTIVE_PACE * self.targets.itl_s if adaptive else _DEFAULT_STEP_S)
        large = workers >= _SMALL_POOL
        settings = WorkerSettings(
            chunk_tokens=self.chunk_tokens or (_MIXED_CHUNK if self.mode is Mode.MIXED else PREFILL_CHUNK),
            step_target_s=step,
            radix_cache=self.radix_cache,
            patience=self.patience,
            page_size=64 if large else 16,
            num_pages=13_000 if large else 52_000,
        )
        roles = (Preference.PREFILL,) * self.prefill + (Preference.DECODE,) * self.decode
        if self.mode is Mode.MIXED:
            roles = (Preference.BOTH,) * workers
        spec = ClusterSpec(preferences=roles, settings=(settings,) * workers)
        return Simulation(spec, self._policy())

    def _policy(self) -> PlacementPolicy:
        match self.mode:
            case Mode.MIXED:
                return MixedPlacement(prefix_aware)
            case Mode.DISAGG:
                return DisaggPlacement(prefix_aware)
            case Mode.ADAPTIVE:
                return AdaptivePlacement(self.targets)


_TABLE: Final = (LogNormal(2048, 0.8, 16_384), Uniform(128, 512))
_SUMMARY: Final = (LogNormal(4096, 0.7, 16_384), Uniform(32, 128))
_STORY: Final = (LogNormal(256, 0.8, 2048), Uniform(512, 1024))
_CHAT: Final = (LogNormal(512, 0.8, 4096), LogNormal(256, 0.7, 1024))


def _mixed(rate: float, seconds: float, seed: int) -> list[Arrival]:
    return merged(
        poisson(rate / 2, seconds, *_SUMMARY, seed=2 * seed),
        poisson(rate / 2, seconds, *_STORY, seed=2 * seed + 1),
    )


LOADS: Final[dict[str, Callable[[float, float, int], list[Arrival]]]] = {
    "table": lambda rate, seconds, seed: poisson(rate, seconds, *_TABLE, seed=seed),
    "long-in": lambda rate, seconds, seed: poisson(rate, seconds, *_SUMMARY, seed=seed),
    "long-out": lambda rate, seconds, seed: poisson(rate, seconds, *_STORY, seed=seed),
    "both": _mixed,
    "shifting": lambda rate, seconds, seed: day(rate, seconds, (_SUMMARY, _TABLE, _STORY), seed),
    "bursts": lambda rate, seconds, seed: bursts(rate, seconds, *_TABLE, seed=seed),
    "chats": lambda rate, seconds, seed: chats(rate, seconds, LogNormal(128, 0.8, 2048), _CHAT[1], seed),
}
"""Loads by name: (requests a second, seconds, seed) -> arrivals."""
