"""What it takes to have a prompt's prefix at a worker: computed, promoted, or from another worker's cache."""

from __future__ import annotations

from dataclasses import dataclass

from router.placement.view import ClusterView, Health, RequestView, WorkerId, WorkerView


@dataclass(frozen=True, slots=True)
class KVSource:
    """Cached KV that moves to the worker that computes the rest of the prompt."""

    worker: WorkerId
    tokens: int
    """Leading prompt tokens that the source worker has cached."""
    fresh_tokens: int
    """Cached tokens that the other worker lacks."""
    pull_s: float
    """Until they have arrived."""
    compute_s: float
    """Until they would be computed instead."""

    @property
    def saved_s(self) -> float:
        return self.compute_s - self.pull_s

    def __str__(self) -> str:
        would = " would come" if self.saved_s <= 0 else ""
        return (
            f"{self.fresh_tokens} tokens{would} from {self.worker.partition('@')[0]} in"
            f" {self.pull_s * 1e3:.0f} ms rather than computed in {self.compute_s * 1e3:.0f} ms"
        )


@dataclass(frozen=True, slots=True)
class Ways:
    """The predicted seconds of each way for one worker."""

    compute_s: float
    """Until all of the prompt would be computed."""
    cached_tokens: int
    cached_s: float
    """Seconds to recompute the cached tokens."""
    tier_tokens: int
    """Cached tokens that come up from tiers."""
    promote_s: float
    tier_s: float
    """Seconds to recompute the tokens on tiers."""
    source: KVSource | None
    """The best other worker, also one that is slower than computing."""

    def __str__(self) -> str:
        """Empty if all that the worker could do was to compute the prompt."""
        parts = []
        if self.cached_tokens:
            parts.append(
                f"{self.cached_tokens} prompt tokens cached, which saves {self.cached_s * 1e3:.0f} ms"
            )
        if self.tier_tokens:
            parts.append(
                f"{self.tier_tokens} of them from tiers in {self.promote_s * 1e3:.0f} ms rather than computed"
                f" in {self.tier_s * 1e3:.0f} ms"
            )
        if self.source is not None:
            parts.append(str(self.source))
        return f"{', '.join(parts)}; the whole prompt takes {self.compute_s * 1e3:.0f} ms" if parts else ""


def ways(request: RequestView, view: ClusterView, worker: WorkerView, prefill_rate: float) -> Ways:
    """Ways to compute a prompt at `worker`, without what waits there. O(workers)."""
    cached = request.cached_on(worker)
    on_tiers = min(request.on_tiers.get(worker.id, 0), cached)
    return Ways(
        request.prompt_tokens / prefill_rate,
        cached,
        cached / prefill_rate,
        on_tiers,
        view.promotion_s(worker.id, on_tiers),
        on_tiers / prefill_rate,
        _nearest(request, view, worker, prefill_rate),
    )


def best_source(
    request: RequestView, view: ClusterView, worker: WorkerView, prefill_rate: float
) -> KVSource | None:
    """The source with which `worker` has the prompt soonest; None if it is to compute all that it lacks.

    `prefill_rate`: prompt tokens that it computes a second. O(workers).
    """
    nearest = _nearest(request, view, worker, prefill_rate)
    return nearest if nearest is not None and nearest.saved_s > 0 else None


def _nearest(
    request: RequestView, view: ClusterView, worker: WorkerView, prefill_rate: float
) -> KVSource | None:
    if not worker.shares_prefixes or not request.stored:
        return None
    own, best = request.cached_on(worker), None
    for other in view.workers:
        if other.id == worker.id or not other.shares_prefixes or other.health is not Health.GOOD:
            continue
        if other.id in request.avoid:
            continue
        tokens = request.stored.get(other.id, 0) // worker.page_size * worker.page_size
        fresh = tokens - own
        if fresh <= 0 or other.page_size != worker.page_size:
            continue
        pull_s = view.link_between(other.id, worker.id).seconds(fresh * view.kv_bytes_per_token)
        pull_s += view.promotion_s(other.id, min(request.on_tiers.get(other.id, 0), fresh))
        source = KVSource(other.id, tokens, fresh, pull_s, fresh / prefill_rate)
        if best is None or source.saved_s > best.saved_s:
            best = source
    return best
