"""A mode, its workers and their settings, as a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from common.kv_groups import ONE_GROUP, KVGroup
from engine.device.defaults import PREFILL_CHUNK
from router.config.choices import Mode, Routing
from router.placement import Preference, Targets, policy_for
from simulator.device import H200_8B, DeviceCosts
from simulator.simulation import NVLINK, ClusterSpec, LinkCosts, Simulation
from simulator.worker import WorkerSettings

_DEFAULT_STEP_S: Final = 0.020
_MIXED_CHUNK: Final = 16_384
TUNED_STEP_SHARE: Final = 0.95
"""Share of the TPOT target that steps with prompts aim at on mixed workers whose step target is tuned."""
_SMALL_POOL: Final = 64
"""With this many workers or more, pages are larger, so that page accounting fits into memory."""


_STRICT: Final = Targets(ttft_s=0.5, tpot_s=0.015)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`prefill` and `decode` workers under a policy; None: the mode's default."""

    mode: Mode
    prefill: int = 1
    decode: int = 1
    targets: Targets = _STRICT
    chunk_tokens: int | None = None
    """-1: whole prompts."""
    step_target_s: float | None = None
    pause_target_s: float | None = None
    """With adaptive placement; None: the engine's default."""
    radix_cache: bool = False
    device: DeviceCosts = H200_8B
    link: LinkCosts = NVLINK
    groups: tuple[KVGroup, ...] = ONE_GROUP
    """Groups of the model's layers."""
    kv_tokens: int = 832_000
    """KV pool of each worker, in tokens with a page in every group."""
    max_running: int = 512
    """Requests that a worker computes at a time."""
    state_slots: int = 0
    """See `WorkerSettings`."""

    @property
    def name(self) -> str:
        if self.mode is Mode.MIXED:
            workers = f"x{self.prefill + self.decode}"
            step = f" step {1e3 * self.step_target_s:.0f} ms" if self.step_target_s else ""
            return f"mixed {workers}{step}"
        pause = f" pause {1e3 * self.pause_target_s:.0f} ms" if self.pause_target_s else ""
        chunk = f" chunk {self.chunk_tokens}" if self.chunk_tokens else ""
        chunk = " whole prompts" if self.chunk_tokens == -1 else chunk
        return f"{self.mode.value} {self.prefill}:{self.decode}{pause}{chunk}"

    def simulation(self) -> Simulation:
        workers = self.prefill + self.decode
        adaptive = self.mode is Mode.ADAPTIVE
        step = None if adaptive else self.step_target_s or _DEFAULT_STEP_S
        page_size = 64 if workers >= _SMALL_POOL else 16
        chunk = self.chunk_tokens or (_MIXED_CHUNK if self.mode is Mode.MIXED else PREFILL_CHUNK)
        settings = WorkerSettings(
            chunk_tokens=None if chunk == -1 else chunk,
            step_target_s=step,
            tpot_target_s=self.targets.tpot_s if adaptive else None,
            pause_target_s=self.pause_target_s if adaptive else None,
            radix_cache=self.radix_cache,
            page_size=page_size,
            groups=self.groups,
            num_pages=self.kv_tokens // page_size * len(self.groups),
            max_running=self.max_running,
            state_slots=self.state_slots,
        )
        roles = (Preference.PREFILL,) * self.prefill + (Preference.DECODE,) * self.decode
        if self.mode is Mode.MIXED:
            roles = (Preference.BOTH,) * workers
        spec = ClusterSpec(
            preferences=roles, settings=(settings,) * workers, device=self.device, link=self.link
        )
        return Simulation(spec, policy_for(self.mode, Routing.PREFIX_AWARE, self.targets))
