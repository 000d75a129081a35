"""Numbers of an engine, for load reports and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.adapters import AdapterUse
from engine.core.waits import WaitReason
from engine.kv.cache.pages import PageCounts
from engine.kv.manager.kv_manager import KVManager
from engine.kv.tiers.stats import TierStats
from engine.loop.requests import Requests
from engine.loop.step_results import StepResults
from engine.sched.scheduler import Scheduler
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
    media_queries: int = 0
    media_hits: int = 0
    media_encoded: int = 0
    """See `MediaUse`; since the start."""
    tiers: TierStats | None = None
    state_slots: PageCounts | None = None
    """None for models without a recurrent state. CACHED: checkpoints."""
    drafts: DraftCounts = field(default_factory=DraftCounts)
    adapters: Sequence[AdapterUse] = ()
    retained_blocks: int = 0
    """Blocks that clients have asked to keep, cached or not."""

    @classmethod
    def of(
        cls,
        scheduler: Scheduler,
        kv: KVManager,
        results: StepResults,
        requests: Requests,
        cache_hit_tokens: int,
    ) -> EngineStats:
        """Numbers of an engine of these parts. O(requests)."""
        return cls(
            waiting=len(scheduler.waiting),
            starved=scheduler.num_waiting if scheduler.wants_pages else 0,
            waits_for=scheduler.waits_for,
            running=scheduler.num_active,
            waiting_tokens=sum(r.num_pending for r in requests.live.values() if r.num_pending > 1),
            available_pages=kv.num_available,
            pages=kv.pool.counts(),
            state_slots=kv.states.pool.counts() if kv.states.used else None,
            steps=results.num_steps,
            preemptions=scheduler.num_preemptions,
            prompt_tokens=results.num_prompt_tokens,
            generated_tokens=results.num_generated_tokens,
            cache_hit_tokens=cache_hit_tokens,
            media_queries=results.media_queries,
            media_hits=results.media_hits,
            media_encoded=results.media_encoded,
            tiers=kv.tiers.tiers.stats() if kv.tiers else None,
            drafts=scheduler.draft_counts,
            retained_blocks=kv.num_retained,
            adapters=requests.adapters.uses(),
        )
