"""Worker selection by load: which workers come into question for a request, and which of them gets it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from router.config.choices import Routing
from router.placement.step_time import StepWork
from router.placement.view import Health, RequestView, WorkerView

Choose: TypeAlias = Callable[[Sequence[WorkerView], RequestView, int], WorkerView]
"""(workers, request, turn): one of `workers`, at least one. `turn` grows by one with every choice."""


def round_robin(workers: Sequence[WorkerView], request: RequestView, turn: int) -> WorkerView:
    """Round-robin, regardless of load."""
    return workers[turn % len(workers)]


def least_loaded(workers: Sequence[WorkerView], request: RequestView, turn: int) -> WorkerView:
    """The worker with the fewest unfinished tokens; ties are broken round-robin."""
    return min(_in_turn(workers, turn), key=partial(_load, request))


def prefix_aware(workers: Sequence[WorkerView], request: RequestView, turn: int) -> WorkerView:
    """The worker with the least cost: queued tokens, plus twice the tokens of this request to compute there.

    Twice, because they delay this request and all later ones. Cached tokens do not count, neither of this
    request nor of queued ones. A request thus goes to the worker that has its prefix cached, unless that has
    more than twice the prefix's length more tokens queued than another; the other worker then computes and
    caches the prefix too, so requests with a popular prefix do not overload one worker. Ties are broken
    round-robin. The cost is that of Dynamo's KV-aware router, and what the request waits for its adapter.
    """
    return min(
        _in_turn(workers, turn),
        key=lambda w: (w.tokens - 2 * request.cached_on(w) + _adapter_tokens(request, w), w.requests),
    )


def power_of_two(workers: Sequence[WorkerView], request: RequestView, turn: int) -> WorkerView:
    """The less loaded of two drawn at random: O(1), and close to the least loaded of all."""
    return min(random.Random(turn).sample(workers, min(2, len(workers))), key=partial(_load, request))


def _in_turn(workers: Sequence[WorkerView], turn: int) -> Sequence[WorkerView]:
    first = turn % len(workers)
    return [*workers[first:], *workers[:first]]


def _load(request: RequestView, worker: WorkerView) -> tuple[float, int]:
    return worker.tokens + _adapter_tokens(request, worker), worker.requests


def _adapter_tokens(request: RequestView, worker: WorkerView) -> float:
    """Prompt tokens that take as long as the request waits for its adapter there."""
    if not (seconds := request.adapter_wait_s(worker)):
        return 0
    return seconds * worker.chunk_tokens / worker.step_time.seconds(StepWork(worker.chunk_tokens))


def preferred(workers: Sequence[WorkerView], request: RequestView) -> list[WorkerView]:
    """The workers of the best health present, among those that the request fits.

    A worker on which this request failed gets it again only if there is no other. A late worker gets it only
    if all are late: the request then waits for a heartbeat, or is retried when the worker is lost. Empty if
    the request fits none.
    """
    return _healthiest([w for w in workers if w.room.fits(request.prompt_tokens)], request)


def _healthiest(workers: Sequence[WorkerView], request: RequestView) -> list[WorkerView]:
    ranks = [max(w.health, Health.AVOIDED) if w.id in request.avoid else w.health for w in workers]
    best = min(ranks, default=Health.GOOD)
    return [worker for worker, rank in zip(workers, ranks, strict=True) if rank is best]


def has_room(workers: Sequence[WorkerView], request: RequestView) -> bool:
    """Whether `pick` would find a worker with room."""
    return any(w.room.has_room(request.prompt_tokens) for w in preferred(workers, request))


def pick(workers: Sequence[WorkerView], request: RequestView, choose: Choose, turn: int) -> WorkerView:
    """The worker that gets a request: a preferred one, with room if possible.

    O(workers). `workers` must not be empty.
    """
    best = preferred(workers, request) or _healthiest(workers, request)
    with_room = [worker for worker in best if worker.room.has_room(request.prompt_tokens)]
    return choose(with_room or best, request, turn)


POLICIES: Final[dict[Routing, Choose]] = {
    Routing.ROUND_ROBIN: round_robin,
    Routing.LEAST_LOADED: least_loaded,
    Routing.POWER_OF_TWO: power_of_two,
    Routing.PREFIX_AWARE: prefix_aware,
}
"""Policies by value of `--routing`."""
