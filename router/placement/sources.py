"""From which other worker's cache a prompt's prefix comes sooner than it is computed."""

from __future__ import annotations

from dataclasses import dataclass

from router.placement.view import ClusterView, Health, RequestView, WorkerId, WorkerView


@dataclass(frozen=True, slots=True)
class Source:
    """Cached KV that moves to the worker that computes the rest of the prompt."""

    worker: WorkerId
    tokens: int
    """Of the prompt, from its beginning, which that worker has cached."""
    fresh_tokens: int
    """Of those, the ones that the other worker lacks."""
    pull_s: float
    """Until they have arrived."""
    compute_s: float
    """Until they would be computed instead."""

    def __str__(self) -> str:
        return (
            f"{self.fresh_tokens} tokens from {self.worker.partition('@')[0]} in {self.pull_s * 1e3:.0f} ms"
            f" rather than computed in {self.compute_s * 1e3:.0f} ms"
        )


def best_source(
    request: RequestView, view: ClusterView, worker: WorkerView, prefill_rate: float
) -> Source | None:
    """The source with which `worker` has the prompt soonest; None if it is to compute all that it lacks.

    `prefill_rate`: prompt tokens that it computes a second. O(workers).
    """
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
        source = Source(other.id, tokens, fresh, pull_s, fresh / prefill_rate)
        if best is None or _saved(source) > _saved(best):
            best = source
    return best if best is not None and _saved(best) > 0 else None


def _saved(source: Source) -> float:
    return source.compute_s - source.pull_s
