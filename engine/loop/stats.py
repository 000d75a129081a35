"""Numbers of an engine, for load reports and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.adapters import AdapterUse
from engine.core.waits import WaitReason
from engine.kv.cache.pages import PageCounts
from engine.kv.tiers.stats import TierStats
from engine.speculation.counts import DraftCounts


@dataclass(frozen=True, slots=True)
class EngineStats:
    waiting: int
    starved: int
    """`waiting` if any waiting request lacks pages or was preempted; 0 if all only wait for token budget."""
    waits_for: WaitReason | None
    """Why the head of the queue waits; None if the queue is empty."""
    running: int
    waiting_tokens: int
    """Prompt tokens not yet computed."""
    available_pages: int
    """Free, or cached and unlocked."""
    pages: PageCounts
    steps: int
    preemptions: int
    prompt_tokens: int
    generated_tokens: int
    cache_hit_tokens: int
    tiers: TierStats | None = None
    state_slots: PageCounts | None = None
    """None for models without a recurrent state. CACHED: checkpoints."""
    drafts: DraftCounts = field(default_factory=DraftCounts)
    adapters: Sequence[AdapterUse] = ()
    retained_blocks: int = 0
    """Blocks that clients have asked to keep, cached or not."""
