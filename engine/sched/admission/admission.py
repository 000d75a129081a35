"""Which waiting requests join a step."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from itertools import islice
from typing import Final

from engine.config import SchedulerConfig
from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.waits import WaitReason
from engine.errors import DeadlineUnreachable
from engine.kv.manager.kv_manager import KVManager
from engine.kv.manager.page_tiers import PromotionStatus
from engine.sched.admission.page_forecast import AdmissionForecast, Forecaster
from engine.sched.chunk_size.chunk_sizer import ChunkSizer
from engine.sched.chunk_size.token_budget import Progress
from engine.sched.queue.policy import PolicyRules
from engine.sched.queue.queues import Queues

_PROMOTED_AHEAD: Final = 8
"""Waiting requests, from the head of the queue, whose KV is promoted before they can be admitted."""
_MOST_SEARCHES: Final = 8
"""Requests for which a plan searches the tiers, each O(its tokens), and which then wait for a promotion:
those after them do not pass in this step."""


class Admission:
    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        queues: Queues,
        rules: PolicyRules,
        chunks: ChunkSizer,
        forecaster: Forecaster,
    ) -> None:
        self.stopped_by: WaitReason | None = None
        """Why the last step left requests waiting."""
        self.lacks_pages = False
        """The last step stopped at a request for which there were too few pages."""
        self.shut_out: list[Request] = []
        """Requests of the last step that need pages in quarantine. Others do not wait for them."""
        self._preempts = config.priority_preemption_threshold is not None
        self._kv = kv
        self._queues = queues
        self._rules = rules
        self._chunks = chunks
        self._forecaster = forecaster

    def admit(self, step: StepPlan, now: float, num_decodes: int) -> list[Request]:
        """Move requests from waiting to running while slots, pages and the step's token budget last.

        A request that would get no tokens of this step takes no pages yet. Returns the admitted requests.
        Admits none if a request was preempted for a decode: its pages are not for new requests.
        """
        self.shut_out.clear()
        self.lacks_pages = bool(step.preempted)
        self.stopped_by = WaitReason.PAGES if step.preempted else None
        admitted: list[Request] = []
        if len(self._queues.waiting) and not step.preempted:
            held_back = self.promote_ahead(now)
            reason = self._in_order(step, now, num_decodes, held_back, admitted)
            self.lacks_pages = reason is WaitReason.PAGES
            self.stopped_by = WaitReason.PAGES if reason is None and self.shut_out else reason
        return admitted

    def promote_ahead(self, now: float) -> _HeldBack:
        """Order copies of what tiers have for the first waiting requests."""
        held_back = _HeldBack(self._kv, now)
        for _, request in islice(self._queues.waiting.in_order(), _PROMOTED_AHEAD * held_back.is_possible):
            held_back.decide(request)
        return held_back

    @property
    def is_open(self) -> bool:
        """Whether the next step may have prompts: some are in progress, or waiting ones can get a slot."""
        return bool(self._queues.prefilling) or self._queues.has_slot or self._preempts

    def in_turn(self) -> list[Request]:
        """Prompts in progress, in the order in which they are served."""
        prefilling = self._queues.prefilling
        return sorted(prefilling, key=self._rules.admission_key) if self._rules.interleaves else prefilling

    def expected_tokens(self, request: Request) -> int:
        """Tokens of a new request that the prefix cache holds or can get from tiers; O(tokens)."""
        cached = self._kv.cached_tokens(request)
        tiers = self._kv.tiers
        return cached if tiers is None else cached + tiers.expected_tokens(request, cached)

    def check_deadline(self, request: Request, now: float, prefill_rate: float) -> None:
        """Raises DeadlineUnreachable.

        Running requests and those ahead of it in the queue share the prefill rate with it.
        """
        key = self._rules.admission_key(request)
        before = [*self._queues.prefilling, *self._queues.waiting.ahead_of(key)]
        tokens = sum(r.num_pending - r.scheduling.num_expected for r in [*before, request])
        wait = tokens / prefill_rate
        if now + wait > request.deadline:
            raise DeadlineUnreachable(
                f"the first token is expected in {wait:.2f} s, after the deadline: {tokens} prompt tokens"
                f" at {prefill_rate:.0f} a second"
            )

    def _in_order(
        self,
        step: StepPlan,
        now: float,
        num_decodes: int,
        held_back: _HeldBack,
        admitted: list[Request],
    ) -> WaitReason | None:
        """Admit in order; returns why the first of the remaining requests waits."""
        queues, key_of = self._queues, self._rules.admission_key
        if not queues.has_slot and not self._preempts:
            return WaitReason.SLOTS
        room = self._chunks.room(num_decodes, len(queues.prefilling) + len(queues.waiting))
        before = deque(request for request in self.in_turn() if request.num_ready)
        forecast, usable = self._forecaster.forecast(queues.running), self._kv.num_usable
        passed: WaitReason | None = None
        for key, request in queues.waiting.in_order():
            while before and (not self._rules.interleaves or key_of(before[0]) <= key):
                room.grant(_progress(before.popleft()))
            if request.awaits_token:
                continue  # preempted; its last token comes with this step's results
            if self._kv.needs.pages(self._kv.needs.blocks(request.num_tokens)) > usable:
                self.shut_out.append(request)
                continue
            if not queues.adapters.admits(request):
                passed = passed or WaitReason.ADAPTER
                continue
            if request in step.preempted:
                return WaitReason.POLICY  # the decodes of this step may name it already
            whole = Progress(0, request.num_tokens)
            is_offered = room.left > 0 and room.offer(whole) > 0
            if room.left > 0 and not is_offered and room.holds_back(whole):
                continue
            comes = held_back.decide(request)
            if comes is PromotionStatus.SOON or (
                comes is PromotionStatus.NO_ROOM and passed is WaitReason.PROMOTION
            ):
                passed = WaitReason.PROMOTION
                if held_back.num_searched > _MOST_SEARCHES:
                    return passed
                continue
            if comes is PromotionStatus.NO_ROOM and queues.running and not self._preempts:
                self._kv.unlock_arrived()
                return WaitReason.PAGES  # rather than compute what is on a tier
            if room.left <= 0:
                return WaitReason.BUDGET
            if not is_offered:
                cached = self._kv.cached_tokens(request)
                if not room.offer(Progress(cached, request.num_tokens - cached)):
                    return WaitReason.BUDGET
            is_new = request.num_cached is None
            if lacking := self._take_pages(request, forecast, step, admitted):
                return lacking
            if is_new:
                request.scheduling.waited = queues.waits.since(request.scheduling.wait_mark, now)
                step.started.append(request)
            elif request.scheduling.preempted_for is not None:
                request.scheduling.preempted_for = None
                step.resumed.append(request)
            request.scheduling.admitted_by_age = key == -math.inf
            queues.waiting.admitted(request, request.num_pending)
            request.scheduling.num_expected = 0
            queues.start(request)
            forecast.admitted(request)
            admitted.append(request)
            if queues.is_prompt(request) and request.num_ready:
                room.grant(_progress(request))
        return passed

    def _take_pages(
        self, request: Request, forecast: AdmissionForecast, step: StepPlan, admitted: list[Request]
    ) -> WaitReason | None:
        """Take pages and a slot for a waiting request; returns what was missing.

        If need be, preempts others, but none that this step has `admitted`: it computes their first chunks.
        """
        queues = self._queues
        headroom = partial(forecast.headroom, request)
        if queues.has_slot and (
            self._kv.admit(request, headroom)
            or (self._kv.unlock_arrived() and self._kv.admit(request, headroom))
        ):
            return None
        lacking = WaitReason.PAGES if queues.has_slot else WaitReason.SLOTS
        if not self._preempts:
            return lacking
        settled = queues.running[: len(queues.running) - len(admitted)]
        victims = [r for r in settled if self._may_preempt(request, r)]
        needed = self._kv.needs.pages(self._kv.needs.blocks(request.num_tokens))
        if self._kv.num_available + sum(map(self._kv.pages_alone, victims)) < needed:
            return lacking
        for victim in queues.victims(victims):
            queues.preempt(victim, WaitReason.POLICY, step)
            if self._kv.admit(request, headroom=lambda _: 0):
                return None
        return lacking

    def _may_preempt(self, waiting: Request, running: Request) -> bool:
        """Requests admitted first because of their age are not preempted."""
        if running.pinned or running.scheduling.admitted_by_age:
            return False
        return self._rules.may_preempt(waiting, running)


class _HeldBack:
    """Which waiting requests wait for KV on a tier, decided once a step for each, in the order of the queue.

    KV comes up for a request if it fits beside those before it, so that they do not evict each other's.
    """

    def __init__(self, kv: KVManager, now: float) -> None:
        self._kv = kv
        self._now = now
        self._room = kv.num_available
        self.num_searched = 0
        """Requests held back for which the tiers were searched."""
        self._decided: dict[int, PromotionStatus] = {}

    @property
    def is_possible(self) -> bool:
        return self._kv.tiers is not None

    def decide(self, request: Request) -> PromotionStatus:
        if self._kv.tiers is None or request.awaits_token:
            return PromotionStatus.NOTHING
        known = self._decided.get(request.scheduling.number)
        if known is None:
            prospect = self._kv.tiers.prospect(request, self._room, self._now)
            known = self._decided[request.scheduling.number] = prospect.comes
            self._room -= prospect.takes
            self.num_searched += prospect.searched and known is not PromotionStatus.NOTHING
        return known


def _progress(request: Request) -> Progress:
    return Progress(request.num_computed, request.num_ready)
