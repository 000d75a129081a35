"""What placement knows of the cluster: the workers' accounts, and what it has learnt of speeds and demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from router.placement.account.load import DecayingRate, WorkerLoad
from router.placement.images import EncodeRates
from router.placement.measured import StepTimes, TransferRates
from router.placement.step_time import EVERYTHING, NO_DRAFTS, PRIOR, Drafting, Reach, StepTime, StepWork
from router.placement.view import (
    ClusterView,
    Demand,
    Health,
    LinkView,
    Preference,
    PromptWork,
    RequestView,
    WorkerId,
    WorkerView,
)

_TIER: Final = LinkView(bytes_per_s=10e9, latency_s=0.002)
"""Assumed between a worker's tiers and its pool until promotions show the bandwidth."""
_FIRST_GUESS: Final = 256.0
_WEIGHT: Final = 0.02
"""Weight of the newest answer in the mean length of answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Constant facts about a worker."""

    id: WorkerId
    prefers: Preference = Preference.BOTH
    chunk_tokens: int
    step_target_s: float | None = None
    pause_target_s: float | None = None
    total_pages: int
    page_size: int
    max_running: int | None = None
    """Requests that it computes at a time; None: any number."""
    shares_prefixes: bool = False
    """Whether it may send cached KV to other workers, and take theirs."""
    prior: StepTime = PRIOR
    reach: Reach = EVERYTHING


@dataclass(slots=True)
class _Worker:
    facts: WorkerFacts
    load: WorkerLoad
    version: int = -1
    """Version of `load` from which `counts` were made."""
    counts: dict[str, Any] = field(default_factory=dict)
    """Fields of the view that come from `load`."""
    view: WorkerView | None = None
    """Cached view; None if out of date."""


class ClusterModel:
    """Makes the view of the cluster that policies decide on.

    Every method costs O(1), except `view`: O(workers), and O(prompts) for each worker whose tasks or report
    have changed since the last.
    """

    def __init__(self, *, kv_bytes_per_token: int, link: LinkView) -> None:
        """`link`: assumed between any two workers until handoffs show the bandwidth."""
        self._kv_bytes_per_token = kv_bytes_per_token
        self._rates = TransferRates(link)
        self._tiers = TransferRates(_TIER)
        self._step_times = StepTimes()
        self._encodes = EncodeRates()
        self._workers: dict[WorkerId, _Worker] = {}
        self._mean_output = _FIRST_GUESS
        self._requests, self._prompts, self._pairs, self._contexts = (DecayingRate() for _ in range(4))

    def add(self, facts: WorkerFacts, load: WorkerLoad) -> None:
        """A worker came up; `load` is its account."""
        self._workers[facts.id] = _Worker(facts, load)
        self._step_times.add(facts.id, facts.prior)

    def remove(self, worker_id: WorkerId) -> None:
        """The worker is gone."""
        self._workers.pop(worker_id, None)
        self._step_times.remove(worker_id)
        self._encodes.remove(worker_id)
        self._rates.forget(worker_id)
        self._tiers.forget(worker_id)

    def expected_output(self, max_tokens: int) -> int:
        """Expected tokens of an answer: the mean of those that were completed, at most `max_tokens`."""
        return max(1, min(max_tokens, round(self._mean_output)))

    def placed(self, request: RequestView, prefill_worker: WorkerId, now: float) -> None:
        """The request was placed: part of the demand. A read adds to the prompts of those with answers."""
        worker = self._workers.get(prefill_worker)
        page_size = worker.facts.page_size if worker is not None else 1
        cached = request.cached_by(prefill_worker, page_size)
        pending = request.prompt_tokens - cached
        self._prompts.add(pending, now)
        self._pairs.add(StepWork.attention_of(cached, pending), now)
        if request.expected_output:
            self._requests.add(1, now)
            self._contexts.add(request.prompt_tokens, now)

    def completed(self, output_tokens: int) -> None:
        """An answer was completed with this many tokens. Not for answers that were cut off: they say nothing
        about lengths."""
        self._mean_output += _WEIGHT * (output_tokens - self._mean_output)

    def stepped(
        self, worker_id: WorkerId, work: StepWork, seconds: float, drafting: Drafting = NO_DRAFTS
    ) -> None:
        """The time of a step on the device. A sample of the steps is enough."""
        if (worker := self._workers.get(worker_id)) is not None:
            self._step_times.observe(worker_id, worker.facts.reach.of_step(work), seconds, drafting)
            worker.view = None

    def encoded(self, worker_id: WorkerId, tokens: int, seconds: float) -> None:
        """A worker took this long to encode images of `tokens` tokens."""
        if (worker := self._workers.get(worker_id)) is not None:
            self._encodes.observe(worker_id, tokens, seconds)
            worker.view = None

    def prefers(self, worker_id: WorkerId, preference: Preference) -> None:
        """The worker's current role."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.facts.prefers is not preference:
            worker.facts = replace(worker.facts, prefers=preference)
            worker.view = None

    def transferred(self, source: WorkerId, destination: WorkerId, num_bytes: int, seconds: float) -> None:
        """A handoff ended: bytes written, and seconds during which writes were in progress."""
        self._rates.observe(source, destination, num_bytes, seconds)

    def promoted(self, worker: WorkerId, tokens: int, seconds: float) -> None:
        """KV of this many tokens came up from a worker's tiers."""
        self._tiers.observe(worker, worker, tokens * self._kv_bytes_per_token, seconds)

    def view(self, now: float, health: Mapping[WorkerId, Health] | None = None) -> ClusterView:
        """`health`: of the workers that can be used now; None: all are, and are well."""
        if health is None:
            health = dict.fromkeys(self._workers, Health.GOOD)
        workers = tuple(self._look(self._workers[key], now, well) for key, well in health.items())
        return ClusterView(
            now=now,
            workers=workers,
            demand=self._demand(now),
            kv_bytes_per_token=self._kv_bytes_per_token,
            link=self._rates.link,
            links=self._rates.links,
            tier=self._tiers.link,
            tiers={worker: link for (worker, _), link in self._tiers.links.items()},
        )

    def _demand(self, now: float) -> Demand:
        requests = self._requests.rate(now)
        if not requests:
            return Demand()
        return Demand(
            requests_per_s=requests,
            prompt_tokens=self._prompts.rate(now) / requests,
            attention=self._pairs.rate(now) / requests,
            context_tokens=self._contexts.rate(now) / requests + self._mean_output / 2,
            output_tokens=self._mean_output,
        )

    def _look(self, worker: _Worker, now: float, health: Health) -> WorkerView:
        facts, load, view = worker.facts, worker.load, worker.view
        context_tokens = load.context_tokens + load.others.context_tokens
        if worker.version != load.version:
            worker.version, worker.counts = load.version, _counts(load, facts, now)
        elif view is not None and view.health is health and view.context_tokens == context_tokens:
            return view
        worker.view = WorkerView(
            id=facts.id,
            prefers=facts.prefers,
            step_time=self._step_times.of(facts.id),
            image_token_s=self._encodes.token_s(facts.id),
            drafting=self._step_times.drafting(facts.id),
            reach=facts.reach,
            chunk_tokens=facts.chunk_tokens,
            step_target_s=facts.step_target_s,
            pause_target_s=facts.pause_target_s,
            max_running=facts.max_running,
            shares_prefixes=facts.shares_prefixes,
            total_pages=facts.total_pages,
            page_size=facts.page_size,
            context_tokens=context_tokens,
            prompt_rate=load.given.rate(now),
            health=health,
            **worker.counts,
        )
        return worker.view


def _counts(load: WorkerLoad, facts: WorkerFacts, now: float) -> dict[str, Any]:
    """The fields of a view that change with `load.version`. O(prompts)."""
    others = load.others
    foreign = (PromptWork(others.queued_tokens, 0, now),) if others.queued_tokens else ()
    own = [
        PromptWork(task.tokens - task.computed, task.computed, task.arrived_at, task.image_tokens)
        for task in load.prompts
    ]
    available = load.available_pages
    return {
        "prompts": (*foreign, *own),
        "decodes": load.decodes + others.decodes,
        "incoming": load.incoming + others.incoming,
        "incoming_tokens": load.incoming_tokens + others.queued_tokens,
        "available_pages": facts.total_pages if available is None else available,
        "requests": load.requests + others.requests,
        "tokens": load.tokens + others.tokens,
        "room": load.room(),
    }
