"""Whether and where to split a prompt: one worker computes its beginning, the one that decodes the rest.

KV is computed in order, so the two parts never overlap in time. A split helps where the worker that decodes
has a queue while the other has none, or where a prefix that one worker has cached is worth fetching.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from router.placement.estimates import Estimates
from router.placement.policies import Candidate
from router.placement.predict import prefill_times
from router.placement.view import ClusterView, RequestView, WorkerView

__all__ = ["best_split", "is_worth_it", "split_points"]

_LONG: Final = 1024
"""Prompt tokens to compute, or to fetch, from which on a split is looked at."""
_SOONER: Final = 0.9
"""TTFT of a split, compared with that of the best choice without one."""
_SAVES: Final = 0.01
"""Misses that a split must save: less is within the error of the predictions."""


def best_split(
    estimates: Estimates,
    request: RequestView,
    view: ClusterView,
    pairs: Sequence[tuple[WorkerView, WorkerView]],
) -> Candidate | None:
    """The split with the least cost; None: none is possible."""
    found = [
        estimates.split(request, view, first, second, at)
        for first, second in pairs
        if first.id != second.id
        for at in split_points(estimates, request, first, second)
    ]
    return min(found, key=lambda candidate: candidate.cost, default=None)


def is_worth_it(split: Candidate, whole: Candidate) -> bool:
    return split.cost < whole.cost - _SAVES and split.ttft_s < _SOONER * whole.ttft_s


def split_points(
    estimates: Estimates, request: RequestView, first: WorkerView, second: WorkerView
) -> set[int]:
    """Tokens at which it may pay to go from `first` to `second`; whole pages, with some left for both."""
    cached, there = request.cached_on(first), request.cached_on(second)
    own = request.prompt_tokens - cached
    points: list[float] = []
    if cached - there >= _LONG:
        points.append(cached)
    if own >= _LONG and request.prompt_tokens - there >= _LONG:
        points += _balanced(estimates, request, first, second, cached)
    size = first.page_size
    whole_pages = {int(point) // size * size for point in points}
    return {at for at in whole_pages if max(there, size) <= at <= request.prompt_tokens - size}


def _balanced(
    estimates: Estimates, request: RequestView, first: WorkerView, second: WorkerView, cached: int
) -> Iterable[float]:
    """Where the first worker is done when the second one has computed what is queued there."""
    pace, own = estimates.pace(first), request.prompt_tokens - cached
    waits = prefill_times([*(p.tokens for p in first.prompts), own], pace)[-1] - own / pace.prefill_rate
    drained = estimates.wait(second, 0)
    if drained > waits:
        yield cached + (drained - waits) * pace.prefill_rate
