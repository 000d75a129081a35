"""Placement decisions, and the policies that make them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from router.placement.by_load import Choose, place
from router.placement.view import ClusterView, Preference, RequestView, WorkerId, WorkerView

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
    """The policy has no worker to choose."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair of workers that was considered, with its predictions."""

    prefill_worker: WorkerId
    decode_worker: WorkerId
    ttft_s: float
    tpot_s: float
    expected_misses: float
    """Expected number of requests that miss a target because of this choice, this request included."""
    cost: float
    """The cost that the policy minimizes: `expected_misses`, plus a small cost of delays."""


@dataclass(frozen=True, slots=True)
class Why:
    """The reason for a placement, for users and logs."""

    policy: str
    candidates: tuple[Candidate, ...] = ()
    """Candidates with predictions, best first; none if the policy makes no predictions."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`prefill_worker` computes the prompt and the first token, `decode_worker` all other tokens."""

    prefill_worker: WorkerId
    decode_worker: WorkerId
    why: Why

    @property
    def is_local(self) -> bool:
        """Whether no KV has to move."""
        return self.prefill_worker == self.decode_worker


class PlacementPolicy(Protocol):
    def place(self, request: RequestView, view: ClusterView) -> Placement:
        """Raises NoWorker."""
        ...


class MixedPlacement:
    """One worker computes prompt and answer."""

    def __init__(self, choose: Choose) -> None:
        self._picker = _Picker(choose)

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        worker = self._picker.pick(view.workers, request).id
        return Placement(worker, worker, Why("mixed"))


class DisaggPlacement:
    """Workers that prefer prefill compute prompts; those that prefer decode compute answers."""

    def __init__(self, choose: Choose) -> None:
        self._prefill, self._decode = _Picker(choose), _Picker(choose)

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        prefill_workers = [w for w in view.workers if w.prefers is not Preference.DECODE]
        decode_workers = [w for w in view.workers if w.prefers is not Preference.PREFILL]
        prefill_worker = self._prefill.pick(prefill_workers, request)
        decode_worker = self._decode.pick(decode_workers, request)
        return Placement(prefill_worker.id, decode_worker.id, Why("disagg"))


class _Picker:
    """Chooses among the workers of one role, with its own round-robin state."""

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
        return workers[place(loads, request.prompt_tokens, self._choose, next(self._turns))]
