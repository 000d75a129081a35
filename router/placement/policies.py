"""Where a request is computed: the decision, and the policies that take it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from router.placement.view import ClusterView, Preference, RequestView, WorkerId, WorkerView
from router.workers.capacity import Choose

__all__ = [
    "Candidate",
    "DisaggPlacement",
    "MixedPlacement",
    "NoWorker",
    "Placement",
    "PlacementPolicy",
    "Why",
]


class NoWorker(Exception):
    """There is no worker that the policy could name."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair of workers that was considered, and what was predicted for it."""

    prefill_worker: WorkerId
    decode_worker: WorkerId
    ttft_s: float
    tpot_s: float
    expected_misses: float
    """Requests, this one and those there already, that are expected to miss a target for this choice."""
    cost: float
    """What the policy minimizes: `expected_misses`, and a little for every delay."""
    split: int | None = None
    """As in `Placement`."""


@dataclass(frozen=True, slots=True)
class Why:
    """The reason for a placement; for people and logs."""

    policy: str
    candidates: tuple[Candidate, ...] = ()
    """Those for which predictions were made, best first; none where the policy makes no predictions."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`prefill_worker` computes prompt tokens [0, split), `decode_worker` all that follows."""

    prefill_worker: WorkerId
    decode_worker: WorkerId
    why: Why
    split: int | None = None
    """None: the whole prompt, and the first token."""

    @property
    def is_local(self) -> bool:
        """No KV has to move."""
        return self.prefill_worker == self.decode_worker


class PlacementPolicy(Protocol):
    def place(self, request: RequestView, view: ClusterView) -> Placement:
        """Raises NoWorker."""
        ...


class MixedPlacement:
    """One worker does it all."""

    def __init__(self, choose: Choose) -> None:
        self._picker = _Picker(choose)

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        worker = self._picker.pick(view.workers, request).id
        return Placement(worker, worker, Why("mixed"))


class DisaggPlacement:
    """Workers that prefer to prefill compute prompts; those that prefer to decode, answers."""

    def __init__(self, choose: Choose) -> None:
        self._prefill, self._decode = _Picker(choose), _Picker(choose)

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        prefill_workers = [w for w in view.workers if w.prefers is not Preference.DECODE]
        decode_workers = [w for w in view.workers if w.prefers is not Preference.PREFILL]
        prefill_worker = self._prefill.pick(prefill_workers, request)
        decode_worker = self._decode.pick(decode_workers, request)
        return Placement(prefill_worker.id, decode_worker.id, Why("disagg"))


class _Picker:
    """Workers of one role, in turns of their own."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._turns = itertools.count()

    def pick(self, workers: Sequence[WorkerView], request: RequestView) -> WorkerView:
        if not workers:
            raise NoWorker("no worker is ready")
        loads = [worker.load for worker in workers]
        if request.cached:
            loads = [
                replace(load, cached_tokens=request.cached_on(worker))
                for load, worker in zip(loads, workers, strict=True)
            ]
        return workers[self._choose(loads, next(self._turns))]
