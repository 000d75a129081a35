"""Settings that make the scheduler plan as another system does, as plain data.

Each preset switches off what that system does not have: sharing of prefixes that are being computed, holding
back of long chunks, the forecast of page use, the ITL target, and ordering by length. Sizes are the other
systems' documented defaults; any of them may be replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from engine.config import Batching, Forecast, Policy, SchedulerConfig, Victim


class Preset(Enum):
    BATON = "baton"
    SGLANG = "sglang"
    VLLM = "vllm"
    ROSEINFER = "roseinfer"


@dataclass(frozen=True, slots=True)
class PresetSettings:
    scheduler: SchedulerConfig
    page_size: int
    """SGLang counts single tokens; elsewhere a page is a block of the prefix cache."""
    limits_several_prefills: bool = False
    """Where several prompts may be partly computed and no threshold is given, it is 4% of the context, and
    one of the prompts may be longer (vLLM)."""


PRESETS: Final[Mapping[Preset, PresetSettings]] = MappingProxyType(
    {
        Preset.BATON: PresetSettings(SchedulerConfig(), page_size=16),
        Preset.SGLANG: PresetSettings(
            SchedulerConfig(
                policy=Policy.FCFS,
                batching=Batching.PREFILL_FIRST,  # --enable-mixed-chunk is off by default
                chunk_budget=2048,
                max_prefill_tokens=16_384,
                max_partial_prefills=1,
                share_prefixes=False,
                hold_long_chunks=False,
                forecast=Forecast.NEW_TOKEN_RATIO,
                victim=Victim.LEAST_OUTPUT,
            ),
            page_size=1,
        ),
        Preset.VLLM: PresetSettings(
            SchedulerConfig(
                policy=Policy.FCFS,
                chunk_budget=2048,
                page_aligned_chunks=False,
                share_prefixes=False,
                hold_long_chunks=False,
                forecast=Forecast.NONE,
                low_priority_values_first=True,
            ),
            page_size=16,
            limits_several_prefills=True,
        ),
        Preset.ROSEINFER: PresetSettings(
            SchedulerConfig(
                policy=Policy.FCFS,
                batching=Batching.ALTERNATING,
                chunk_budget=None,
                long_prefill_token_threshold=256,
                page_aligned_chunks=False,
                share_prefixes=False,
                hold_long_chunks=False,
                forecast=Forecast.NONE,
            ),
            page_size=16,
        ),
    }
)
