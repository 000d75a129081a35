"""Policies in which a worker's role determines what it computes; `--routing` chooses among equal workers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from router.placement.policies.by_load import Choose, has_room, least_loaded, pick
from router.placement.policies.estimates import source_for
from router.placement.policy import HandoffRule, NoWorker, Placement, PlacementPolicy, QuarantinedPages, Why
from router.placement.view import ClusterView, Preference, RequestView, WorkerId, WorkerView


class MixedPlacement(PlacementPolicy):
    """One worker computes prompt and answer. Requests queue at the workers, and never in the router."""

    handoffs = HandoffRule.NEVER

    def __init__(self, choose: Choose) -> None:
        self._turns = _Turns(choose)

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        worker = self._turns.pick(view.workers, request)
        return Placement(worker, worker, Why("mixed"), source_for(worker, request, view))


class DisaggPlacement(PlacementPolicy):
    """Workers that prefer prefill compute prompts; those that prefer decode compute answers.

    A request waits until a decode worker has room for its KV. Which one gets the KV is decided again when the
    prompt starts, by the latest load. While no worker of one role is ready, those of the other role compute
    whole requests.
    """

    handoffs = HandoffRule.ONE_WAY

    def __init__(self, choose: Choose) -> None:
        self._prefill, self._decode = _Turns(choose), _Turns(choose)

    def place(self, request: RequestView, view: ClusterView) -> Placement | None:
        prefill = _without(Preference.DECODE, view.workers)
        decode = _without(Preference.PREFILL, view.workers)
        if decode and not any(worker.room.fits(request.prompt_tokens) for worker in decode):
            raise QuarantinedPages
        if decode and not has_room(decode, request):
            return None
        if not prefill or not decode:
            missing, turns = ("decode", self._prefill) if prefill else ("prefill", self._decode)
            worker = turns.pick(prefill or decode, request)
            why = Why(f"disagg: no {missing} worker is ready")
            return Placement(worker, worker, why, source_for(worker, request, view))
        # By load: a choice that is made again must not advance the round-robin position.
        promised = pick(decode, request, least_loaded, 0).id
        reader = self._prefill.pick(prefill, request)
        return Placement(reader, promised, Why("disagg"), source_for(reader, request, view))

    def decode_worker(self, placement: Placement, request: RequestView, view: ClusterView) -> WorkerId:
        return self._decode.pick(_without(Preference.PREFILL, view.workers), request)

    def prefill_workers(self, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        return _without(Preference.DECODE, workers) or workers

    def decode_workers(self, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        return _without(Preference.PREFILL, workers) or workers


class _Turns:
    """Chooses among the workers of one role. With a shared round-robin position, two prefill and two decode
    workers would always form the same pairs."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._turns = itertools.count()

    def pick(self, workers: Sequence[WorkerView], request: RequestView) -> WorkerId:
        if not workers:
            raise NoWorker
        return pick(workers, request, self._choose, next(self._turns)).id


def _without(preference: Preference, workers: Sequence[WorkerView]) -> list[WorkerView]:
    return [worker for worker in workers if worker.prefers is not preference]
