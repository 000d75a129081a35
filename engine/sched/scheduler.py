"""Which tokens the next step computes. Plain Python: no tensors, no sockets, no clock."""

from __future__ import annotations

import math
from collections import deque
from functools import partial

from engine.config import Batching, Policy, SchedulerConfig
from engine.core.kv_manager import KVManager
from engine.core.plan import Chunk, StepPlan
from engine.core.request import PENDING, Request
from engine.core.sampling_params import FinishReason
from engine.core.waits import WaitClock, WaitReason
from engine.errors import DeadlineUnreachable, InvalidRequest, QueueFull
from engine.sched.admission_forecast import AdmissionForecast, NewTokenRatio, outlook_for
from engine.sched.itl_controller import ITLController
from engine.sched.page_forecast import OutputLengths
from engine.sched.policy import rules_for
from engine.sched.prefill_share import PrefillShare
from engine.sched.prefix_ranker import PrefixRanker
from engine.sched.prefixes_in_flight import PrefixesInFlight
from engine.sched.token_budget import Progress
from engine.sched.waiting_queue import WaitingQueue

__all__ = ["Scheduler"]


class Scheduler:
    """Keeps the waiting and the running requests and plans one step at a time.

    There are no phases: a prompt, a decode, a resumed request and one whose KV came from another worker
    differ only in how many tokens they have to catch up with.
    """

    def __init__(self, config: SchedulerConfig, kv: KVManager, *, context: int, seed: int = 0) -> None:
        """`context`: prompt and output tokens that one request may have."""
        self.config = config
        self.kv = kv
        self.context = context
        self.rules = rules_for(config, seed)
        ages = config.policy is not Policy.SHORTEST  # which ages prompts by its own key
        self.waiting = WaitingQueue(
            self.rules.admission_key,
            aging_tokens=config.aging_tokens if ages else None,
            ranker=_ranker(config, kv),
            quantum=config.tenant_quantum,
        )
        self.adopted: deque[Request] = deque()
        """Their KV is here, and only a slot is missing. In order of arrival."""
        self.running: list[Request] = []
        """In order of admission."""
        self.num_preemptions = 0
        self.waits = WaitClock()
        self.share = PrefillShare(config, kv.page_size, context)
        self._reading: list[Request] = []
        """Those of `running` that have more than one token to compute, in the same order."""
        self._slots = list(range(config.max_running_requests - 1, -1, -1))
        self._lengths = OutputLengths()
        self._ratio = NewTokenRatio(config.schedule_conservativeness)
        self._in_flight = PrefixesInFlight(kv.page_size)
        """Chunks of steps that have not completed; empty unless prefixes are shared."""
        self._stopped_by: WaitReason | None = None
        """Why the last plan left requests waiting."""
        self._submitted = 0
        """Prompt tokens submitted so far, without those that were cached then."""
        self._number = 0
        self._prompts_were_last = False
        self._has_prompts_left = False
        """Whether the last plan left prompts to be read."""

    @property
    def itl_controller(self) -> ITLController | None:
        return self.share.itl_controller

    def submit(self, request: Request, now: float = 0.0, prefill_rate: float = math.inf) -> None:
        """Queue a request. `prefill_rate`: prompt tokens a second, as measured.

        Raises InvalidRequest for one that can never run, QueueFull if too many wait, DeadlineUnreachable if
        requests before it take until its deadline. Costs O(waiting) for a request with a deadline.
        """
        if request.num_tokens >= self.context:
            raise InvalidRequest(
                f"{request.num_tokens} tokens leave no room for an answer: the context holds {self.context}"
            )
        largest = self.share.largest_prompt
        if len(request.prompt) > largest:
            raise InvalidRequest(
                f"a prompt of {len(request.prompt)} tokens never fits into a step of {largest}: "
                "chunked prefill is off; turn it on, or raise the budget of a step"
            )
        if len(self.waiting) >= self.config.max_waiting_requests:
            raise QueueFull(f"{len(self.waiting)} requests wait already")
        request.num_expected = self._cached_tokens(request)
        request.handicap = self._submitted / self.config.prompt_patience
        if request.ttft_target_s < math.inf:
            self._check_deadline(request, now, prefill_rate)
        self._submitted += request.num_pending - request.num_expected
        self._register(request, now)
        self.waiting.add(request)

    def adopt(self, request: Request, now: float = 0.0) -> None:
        """A request whose KV is here already: it decodes in the next step, or as soon as a slot is free."""
        self._register(request, now)
        self.adopted.append(request)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.adopted)

    @property
    def wants_pages(self) -> bool:
        """Whether a request waits for pages: it found none, or was preempted for their sake."""
        return len(self.waiting) > 0 and (
            self._stopped_by is WaitReason.PAGES or self.waiting.num_preempted > 0
        )

    @property
    def is_crowded(self) -> bool:
        """Whether a request that comes now would wait for a slot or for pages, however short it is."""
        return self.num_waiting > 0 and (not self._slots or self.wants_pages)

    @property
    def has_prompts(self) -> bool:
        """Whether the next step would have any: new ones, or what is left of others."""
        return self._has_prompts_left or any(r.num_pending > 1 for r in self.waiting)

    def plan(self, now: float = 0.0) -> StepPlan:
        """The next step. `now` only dates why requests wait."""
        step = StepPlan()
        while self.adopted and self._slots:
            self._start(self.adopted.popleft())
        prompts: list[Chunk] = []
        decodes: list[Chunk] = []
        self._stopped_by = None
        if self.config.batching is Batching.MIXED:
            self._admit(step, now, num_decodes=self._make_room(step))
            decodes = self._decode()
            prompts = self._prefill(len(decodes))
        else:
            if self.config.batching is Batching.ALTERNATING and self._prompts_were_last:
                decodes = self._decode_alone(step)
            if not decodes:
                self._admit(step, now, num_decodes=0)
                prompts = self._prefill(num_decodes=0)
            if not decodes and not prompts:
                decodes = self._decode_alone(step)
        self._has_prompts_left = bool(self._reading)
        self._prompts_were_last = bool(prompts)
        self._note_waits(step, now)
        # Attention runs longer chunks and single tokens through different kernels; see Batch.
        step.chunks = [c for c in prompts if c.length > 1] + [c for c in prompts if c.length == 1] + decodes
        return step

    def complete(self, chunk: Chunk) -> None:
        """The step has run: the chunk's KV is really in the pool."""
        if chunk.length > 1:
            self._in_flight.discard(chunk.request, chunk.start)
        if chunk.request.slot >= 0 and chunk.length > 1:  # else it was preempted or has ended meanwhile
            self.kv.store(chunk.request, chunk.end)

    def remove(self, request: Request, reason: FinishReason) -> None:
        """End a request, wherever it is. Its pages stay until `kv.release`."""
        request.finish = reason
        while request.awaits_token:
            request.output.pop()
        if reason is not FinishReason.ABORT and not request.pinned:  # else its answer goes on elsewhere
            self._lengths.ended(request)
        if request.slot >= 0:
            self._vacate(request)
        elif request.pages:
            self.adopted.remove(request)
        else:
            self.waiting.remove(request)

    def preempt(self, request: Request) -> None:
        """Give its pages back and let it start over, later; what the cache keeps of it, it finds again."""
        assert not request.pinned, "a peer may be reading its pages"
        self.num_preemptions += 1
        self.kv.release(request)
        self._vacate(request)
        request.handicap = -math.inf
        self.waiting.add(request)

    # ---------------------------------------------------------------------------- decodes

    def _make_room(self, step: StepPlan) -> int:
        """Pages for the next tokens of all decodes, if need be of other requests, in the victims' order.

        The number of decodes that are left.

        Pinned requests keep theirs. They do not decode, so a request that needs a page can be the victim.
        """
        decodes = [r for r in self.running if self._decodable(r)]
        for request in decodes:
            while request.slot >= 0 and not self.kv.grow(request):
                self._retract(step)
        if not step.preempted:
            if decodes:
                self._ratio.decoded()
            return len(decodes)
        return sum(r.slot >= 0 for r in decodes)

    def _retract(self, step: StepPlan) -> None:
        candidates = [r for r in self.running if not r.pinned]
        key = self.rules.victim_key
        victim = max(enumerate(candidates), key=lambda pair: (key(pair[1]), pair[0]))[1]
        self.preempt(victim)
        step.preempted.append(victim)
        self._ratio.retracted([r for r in self.running if r.output])

    def _decode_alone(self, step: StepPlan) -> list[Chunk]:
        self._make_room(step)
        return self._decode()

    def _decodable(self, request: Request) -> bool:
        """One token to go, and the answer not yet complete whatever the token in flight turns out to be."""
        num_tokens = len(request.prompt) + len(request.output)
        return (
            num_tokens - request.num_computed == 1
            and len(request.output) < request.sampling.max_tokens
            and num_tokens < self.context
        )

    def _decode(self) -> list[Chunk]:
        """Every running request with one token to go; they are never starved."""
        return [self._compute(request, 1) for request in self.running if self._decodable(request)]

    # ---------------------------------------------------------------------------- prompts

    def _prefill(self, num_decodes: int) -> list[Chunk]:
        prompts: list[Request] = []
        planned = PrefixesInFlight(self.kv.page_size)
        for request in self._in_turn():
            # Two requests about to compute the same page: the second waits a step and finds it in the cache.
            if self._shares:
                start = request.num_computed
                if self._in_flight.shared(request, start) or planned.shared(request, start):
                    continue
                planned.add(request, start)
            prompts.append(request)
        progress = [Progress(r.num_computed, r.num_pending) for r in prompts]
        lengths = self.share.lengths(progress, num_decodes)
        chunks = [self._compute(r, length) for r, length in zip(prompts, lengths, strict=True) if length]
        self._reading = [r for r in self._reading if r.num_pending > 1]
        return chunks

    def _in_turn(self) -> list[Request]:
        """Prompts in progress, in the order in which they are served."""
        if not self.rules.interleaves:
            return self._reading
        return sorted(self._reading, key=self.rules.admission_key)

    def _admit(self, step: StepPlan, now: float, num_decodes: int) -> None:
        """Move requests from waiting to running while slots and pages last, if they get a part of this step.

        A request that would get none takes no pages yet.
        """
        if len(self.waiting) and not step.preempted:
            self._stopped_by = self._admit_in_order(step, now, num_decodes)
        elif step.preempted:
            self._stopped_by = WaitReason.PAGES
        # Now, for a prompt that is found in the cache up to its last token decodes in this very step: left
        # for the next, this step might be empty, after which the engine's caller sleeps.
        if self._shares:
            for request in self._reading:
                self.kv.catch_up(request)
        self._reading = [r for r in self._reading if r.num_pending > 1]

    def _admit_in_order(self, step: StepPlan, now: float, num_decodes: int) -> WaitReason | None:
        """Why the first of those that still wait does."""
        if not self._slots and self.config.priority_preemption_threshold is None:
            return WaitReason.SLOTS
        room = self.share.room(num_decodes, len(self._reading) + len(self.waiting))
        before = deque(self._in_turn())
        forecast = outlook_for(self.config, self.kv, self._lengths, self._ratio, self.running)
        for key, request in self.waiting.in_order():
            while before and (not self.rules.interleaves or self.rules.admission_key(before[0]) <= key):
                room.grant(_progress(before.popleft()))
            if request.awaits_token:
                continue  # preempted while its last token was on the way: it comes with this step's results
            if room.left <= 0:
                return WaitReason.BUDGET
            if not room.offer(Progress(0, request.num_tokens)):
                cached = self._cached_tokens(request)
                rest = Progress(cached, request.num_tokens - cached)
                if room.holds_back(rest):
                    continue
                if not room.offer(rest):
                    return WaitReason.BUDGET
            if reason := self._take(request, forecast, step):
                return reason
            if request.num_cached is not None and key == -math.inf:
                request.handicap = -math.inf
            self._admitted(request, step, now)
            forecast.admitted(request)
            if request.num_pending > 1:
                room.grant(_progress(request))
        return None

    def _take(self, request: Request, forecast: AdmissionForecast, step: StepPlan) -> WaitReason | None:
        """Give a waiting request its pages, and make sure of a slot; what was lacking, if anything."""
        fits = partial(forecast.headroom, request)
        was_admitted = request.num_cached is not None
        if self._slots and self.kv.admit(request, headroom=fits):
            if not was_admitted:
                step.started.append(request)
            return None
        lacking = WaitReason.PAGES if self._slots else WaitReason.SLOTS
        key = self.rules.victim_key
        victims = [r for r in self.running if self._may_preempt(request, r)]
        needed = -(-request.num_tokens // self.kv.page_size)
        if self.kv.num_available + sum(map(self.kv.pages_alone, victims)) < needed:
            return lacking
        for _, victim in sorted(enumerate(victims), key=lambda pair: (key(pair[1]), pair[0]), reverse=True):
            self.preempt(victim)
            step.preempted.append(victim)
            if self.kv.admit(request, headroom=lambda _: 0):
                if not was_admitted:
                    step.started.append(request)
                return None
        return lacking

    def _may_preempt(self, waiting: Request, running: Request) -> bool:
        """Requests that went first because of their age keep their place."""
        return (
            not running.pinned
            and self.rules.may_preempt(waiting, running)
            and not self.waiting.is_aged(running)
        )

    def _admitted(self, request: Request, step: StepPlan, now: float) -> None:
        if request in step.started:
            request.waited = self.waits.since(request.wait_mark, now)
        self.waiting.admitted(request, request.num_pending)
        request.num_expected = 0
        self._start(request)

    def _start(self, request: Request) -> None:
        request.slot = self._slots.pop()
        self.running.append(request)
        if request.num_pending > 1:
            self._reading.append(request)

    def _vacate(self, request: Request) -> None:
        self.running.remove(request)
        if request in self._reading:
            self._reading.remove(request)
        self._slots.append(request.slot)
        request.slot = -1

    # ---------------------------------------------------------------------------- accounts

    @property
    def _shares(self) -> bool:
        return self.kv.cache is not None and self.config.share_prefixes

    def _cached_tokens(self, request: Request) -> int:
        """Tokens that the prefix cache holds of a request; O(tokens)."""
        if self.kv.cache is None:
            return 0
        cached = self.kv.cache.match(request.tokens(0, request.num_tokens - 1), touch=False)
        return len(cached.pages) * self.kv.page_size

    def _check_deadline(self, request: Request, now: float, prefill_rate: float) -> None:
        """Those that run, and those that wait and go before it, share the prefill rate with it."""
        key = self.rules.admission_key(request)
        before = [other for other in self.waiting if self.rules.admission_key(other) <= key]
        tokens = sum(r.num_pending - r.num_expected for r in [*self._reading, *before, request])
        expected = now + tokens / prefill_rate
        if expected > request.deadline:
            raise DeadlineUnreachable(
                f"the first token is expected in {expected - now:.2f} s, after the deadline: {tokens} prompt "
                f"tokens at {prefill_rate:.0f} a second"
            )

    def _register(self, request: Request, now: float) -> None:
        self._number += 1
        request.number = self._number
        request.tokens_before = self.waiting.admitted_tokens
        request.wait_mark = self.waits.mark(now)

    def _note_waits(self, step: StepPlan, now: float) -> None:
        reason = self._stopped_by
        if reason is not None and step.started and len(self.waiting):
            overtook = max(request.number for request in step.started) > self.waiting.oldest
            reason = WaitReason.POLICY if overtook else reason
        self.waits.planned(reason if len(self.waiting) else None, now)

    def _compute(self, request: Request, length: int) -> Chunk:
        """Plan the next `length` tokens of a request, and advance it as if they were computed."""
        start = request.num_computed
        if length > 1 and self._shares:
            self._in_flight.add(request, start)
        request.num_computed += length
        output_index = None
        if request.num_pending == 0:
            output_index = len(request.output)
            request.output.append(PENDING)
        return Chunk(request, request.slot, start, length, output_index)


def _progress(request: Request) -> Progress:
    return Progress(request.num_computed, request.num_pending)


def _ranker(config: SchedulerConfig, kv: KVManager) -> PrefixRanker | None:
    if kv.cache is None or config.policy not in (Policy.LPM, Policy.DFS_WEIGHT):
        return None
    return PrefixRanker(kv.cache, depth_first=config.policy is Policy.DFS_WEIGHT)
