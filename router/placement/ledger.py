"""Maintains the view of the cluster from the messages of a router."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from router.placement.decaying_rate import DecayingRate
from router.placement.policies import Placement
from router.placement.step_time import PRIOR, StepTime, StepWork
from router.placement.step_times import StepTimes
from router.placement.transfer_rate import TransferRates
from router.placement.view import (
    IDLE,
    ClusterView,
    Demand,
    Link,
    Outstanding,
    Preference,
    PromptWork,
    RequestView,
    WorkerId,
    WorkerView,
)

__all__ = ["Ledger", "WorkerFacts"]

RequestId: TypeAlias = int

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
    prior: StepTime = PRIOR


@dataclass(slots=True)
class _Placed:
    """A request that has not ended."""

    placement: Placement
    prompt_tokens: int
    computed: int
    """Prompt tokens whose KV is there, those that the prefill worker has cached included."""
    reader_fresh: int
    """Prompt tokens that the prefill worker had not cached."""
    arrived: float
    decoder_fresh: int
    """Prompt tokens that the decode worker has not cached."""
    decoding: bool = False

    def work(self) -> PromptWork:
        return PromptWork(self.prompt_tokens - self.computed, self.computed, self.arrived)


@dataclass(slots=True)
class _Worker:
    facts: WorkerFacts
    prompts: dict[RequestId, _Placed] = field(default_factory=dict)
    """To be computed here."""
    decodes: int = 0
    context_tokens: int = 0
    incoming: int = 0
    incoming_tokens: int = 0
    available_pages: int = 0
    load: Outstanding = IDLE
    given: DecayingRate = field(default_factory=DecayingRate)
    """Prompt tokens."""
    view: WorkerView | None = None
    """Cached view; None if out of date."""


class Ledger:
    """Unfinished requests of each worker, and its reports.

    Every method costs O(1), except `view`: O(workers), and O(prompts) for each worker changed since the last.
    """

    def __init__(self, *, kv_bytes_per_token: int, link: Link) -> None:
        """`link`: assumed between any two workers until handoffs show the bandwidth."""
        self._kv_bytes_per_token = kv_bytes_per_token
        self._rates = TransferRates(link)
        self._step_times = StepTimes()
        self._workers: dict[WorkerId, _Worker] = {}
        self._placed: dict[RequestId, _Placed] = {}
        self._mean_output = _FIRST_GUESS
        self._requests, self._prompts, self._pairs, self._contexts = (DecayingRate() for _ in range(4))

    def add(self, facts: WorkerFacts) -> None:
        """A worker came up. It replaces one of the same id."""
        self._workers[facts.id] = _Worker(facts, available_pages=facts.total_pages)
        self._step_times.add(facts.id, facts.prior)

    def remove(self, worker_id: WorkerId) -> None:
        """The worker is gone. `ended` must still be called for each of its requests."""
        self._workers.pop(worker_id, None)
        self._step_times.remove(worker_id)
        self._rates.forget(worker_id)

    def expected_output(self, max_tokens: int) -> int:
        """Expected tokens of an answer: the mean of those that ended, at most `max_tokens`."""
        return max(1, min(max_tokens, round(self._mean_output)))

    # ------------------------------------------------------------------------------ a request's way

    def placed(self, request_id: RequestId, request: RequestView, placement: Placement, now: float) -> None:
        """The request was sent to its workers."""
        prefill_worker = self._workers.get(placement.prefill_worker)
        page_size = prefill_worker.facts.page_size if prefill_worker is not None else 1
        cached = request.cached_by(placement.prefill_worker, page_size)
        placed = _Placed(
            placement,
            request.prompt_tokens,
            cached,
            request.prompt_tokens - cached,
            request.arrived,
            request.prompt_tokens - request.cached_by(placement.decode_worker, page_size),
        )
        self._placed[request_id] = placed
        pending = placed.reader_fresh
        self._requests.add(1, now)
        self._prompts.add(pending, now)
        self._pairs.add(StepWork.attention_of(request.prompt_tokens - pending, pending), now)
        self._contexts.add(request.prompt_tokens, now)
        if prefill_worker is not None:
            prefill_worker.prompts[request_id] = placed
            prefill_worker.given.add(pending, now)
            prefill_worker.view = None
        if (decoder := self._workers.get(placement.decode_worker)) is not None:
            decoder.incoming += 1
            decoder.incoming_tokens += request.prompt_tokens
            decoder.view = None
        self._load(placement.decode_worker, 1, placed.decoder_fresh)
        if not placement.is_local:
            self._load(placement.prefill_worker, 1, placed.reader_fresh)

    def progressed(self, request_id: RequestId, pending: int) -> None:
        """`pending` tokens of its prompt are still to be computed."""
        placed = self._placed.get(request_id)
        if placed is None:
            return
        placed.computed = placed.prompt_tokens - pending
        if (worker := self._workers.get(placed.placement.prefill_worker)) is not None:
            worker.view = None

    def read(self, request_id: RequestId) -> None:
        """The prompt is computed: the first token has arrived."""
        placed = self._placed.get(request_id)
        if placed is None:
            return
        placed.computed = placed.prompt_tokens
        if placed.placement.is_local:
            self._drop_prompt(request_id, placed)
            self._begin_decoding(placed)
        else:
            self._end_prefill(request_id, placed)

    def arrived(self, request_id: RequestId) -> None:
        """Its KV has arrived on the decode worker."""
        placed = self._placed.get(request_id)
        if placed is not None:
            self._begin_decoding(placed)

    def decoded(self, worker_id: WorkerId, tokens: int) -> None:
        """A step produced `tokens`, one for each decode."""
        if (worker := self._workers.get(worker_id)) is not None:
            worker.context_tokens += tokens
            worker.view = None

    def moved(self, request_id: RequestId, worker_id: WorkerId, output_tokens: int) -> None:
        """Another worker decodes from now on, after this many tokens of the answer."""
        placed = self._placed.get(request_id)
        if placed is None:
            return
        before = placed.placement.decode_worker
        placed.placement = replace(placed.placement, decode_worker=worker_id)
        for worker, sign in ((self._workers.get(before), -1), (self._workers.get(worker_id), 1)):
            if worker is not None:
                worker.decodes += sign
                worker.context_tokens += sign * (placed.prompt_tokens + output_tokens)
                worker.view = None
        self._load(before, -1, -placed.decoder_fresh)
        placed.decoder_fresh = placed.prompt_tokens
        self._load(worker_id, 1, placed.decoder_fresh)

    def ended(self, request_id: RequestId, output_tokens: int) -> None:
        """The request ended, for whatever reason, after this many tokens of its answer."""
        placed = self._placed.pop(request_id, None)
        if placed is None:
            return
        self._mean_output += _WEIGHT * (output_tokens - self._mean_output)
        placement = placed.placement
        if not placement.is_local:
            self._end_prefill(request_id, placed)
        self._drop_prompt(request_id, placed)
        if (decoder := self._workers.get(placement.decode_worker)) is not None:
            if placed.decoding:
                decoder.decodes -= 1
                decoder.context_tokens -= placed.prompt_tokens + output_tokens
            else:
                decoder.incoming -= 1
                decoder.incoming_tokens -= placed.prompt_tokens
            decoder.view = None
        self._load(placement.decode_worker, -1, -placed.decoder_fresh)

    # ------------------------------------------------------------------------------ a worker's report

    def reported(self, worker_id: WorkerId, available_pages: int) -> None:
        if (worker := self._workers.get(worker_id)) is not None:
            worker.available_pages = available_pages
            worker.view = None

    def stepped(self, worker_id: WorkerId, work: StepWork, seconds: float) -> None:
        """The time of a step on the device. A sample of the steps is enough."""
        if (worker := self._workers.get(worker_id)) is not None:
            self._step_times.observe(worker_id, work, seconds)
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

    # ------------------------------------------------------------------------------ the view

    def view(self, now: float, among: AbstractSet[WorkerId] | None = None) -> ClusterView:
        """`among`: the workers that can be used now; None: all."""
        workers = tuple(
            worker.view or self._look(worker, now)
            for key, worker in self._workers.items()
            if among is None or key in among
        )
        return ClusterView(
            now=now,
            workers=workers,
            demand=self._demand(now),
            kv_bytes_per_token=self._kv_bytes_per_token,
            link=self._rates.link,
            links=self._rates.links,
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

    def _look(self, worker: _Worker, now: float) -> WorkerView:
        facts = worker.facts
        worker.view = WorkerView(
            id=facts.id,
            prefers=facts.prefers,
            step_time=self._step_times.of(facts.id),
            chunk_tokens=facts.chunk_tokens,
            step_target_s=facts.step_target_s,
            pause_target_s=facts.pause_target_s,
            prompts=tuple(placed.work() for placed in worker.prompts.values()),
            decodes=worker.decodes,
            context_tokens=worker.context_tokens,
            incoming=worker.incoming,
            incoming_tokens=worker.incoming_tokens,
            max_running=facts.max_running,
            prompt_rate=worker.given.rate(now),
            available_pages=worker.available_pages,
            total_pages=facts.total_pages,
            page_size=facts.page_size,
            load=worker.load,
        )
        return worker.view

    def _end_prefill(self, request_id: RequestId, placed: _Placed) -> None:
        """The prefill worker has done its part for a request that another decodes."""
        worker_id = placed.placement.prefill_worker
        worker = self._workers.get(worker_id)
        if worker is not None and worker.prompts.pop(request_id, None) is not None:
            self._load(worker_id, -1, -placed.reader_fresh)

    def _drop_prompt(self, request_id: RequestId, placed: _Placed) -> None:
        """Nothing of the prompt is left to the worker that decodes."""
        if (worker := self._workers.get(placed.placement.decode_worker)) is not None:
            worker.prompts.pop(request_id, None)
            worker.view = None

    def _begin_decoding(self, placed: _Placed) -> None:
        if placed.decoding:
            return
        placed.decoding = True
        worker = self._workers.get(placed.placement.decode_worker)
        if worker is not None:
            worker.incoming -= 1
            worker.incoming_tokens -= placed.prompt_tokens
            worker.decodes += 1
            worker.context_tokens += placed.prompt_tokens + 1
            worker.view = None

    def _load(self, worker_id: WorkerId, requests: int, tokens: int) -> None:
        if (worker := self._workers.get(worker_id)) is not None:
            load = worker.load
            worker.load = replace(load, requests=load.requests + requests, tokens=load.tokens + tokens)
            worker.view = None
