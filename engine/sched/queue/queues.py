"""The queues of requests (waiting, running, waiting for a slot) and the moves between them."""

from __future__ import annotations

import math
from collections import deque

from engine.config import Batching, SchedulerConfig
from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.waits import WaitClock, WaitReason
from engine.kv.manager.kv_manager import KVManager
from engine.sched.queue.adapter_slots import AdapterSlots
from engine.sched.queue.policy import PolicyRules
from engine.sched.queue.waiting_queue import WaitingQueue


class Queues:
    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        rules: PolicyRules,
        waiting: WaitingQueue,
        max_loras: int = 0,
    ) -> None:
        self.adapters = AdapterSlots(max_loras)
        self.waiting = waiting
        self.waiting_for_slot: deque[Request] = deque()
        """Requests that arrived with their KV and wait for a slot. In order of arrival."""
        self.running: list[Request] = []
        """In order of admission."""
        self.prefilling: list[Request] = []
        """Prompts in progress: those of `running` for which `is_prompt` holds, in the same order."""
        self.waits = WaitClock()
        self.num_preemptions = 0
        self._kv = kv
        self._rules = rules
        self._slots = list(range(config.max_running_requests - 1, -1, -1))
        self._separate = config.batching is not Batching.MIXED
        self.num_registered = 0

    @property
    def has_slot(self) -> bool:
        return bool(self._slots)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.waiting_for_slot)

    def is_prompt(self, request: Request) -> bool:
        """Whether prefill is left. The last token of a prompt counts as prefill with separate batches, and if
        the prompt is read."""
        pending = request.num_pending
        if pending != 1:
            return pending > 1
        return request.read is not None or (self._separate and not request.output)

    def register(self, request: Request, now: float) -> None:
        """Register a new request, before it joins a queue."""
        self.num_registered += 1
        request.scheduling.number = self.num_registered
        request.scheduling.tokens_before = self.waiting.admitted_tokens
        request.scheduling.wait_mark = self.waits.mark(now)

    def start(self, request: Request) -> None:
        request.slot = self._slots.pop()
        self.adapters.start(request)
        request.admissions += 1
        self.running.append(request)
        if self.is_prompt(request):
            self.prefilling.append(request)

    def start_remote(self) -> None:
        """Start requests that came with their KV while slots last.

        They have their pages and take one token of a step, so they never wait for prompts. Call it first in
        a plan.
        """
        self.adapters.begin()
        for request in list(self.waiting_for_slot):
            if not self._slots:
                break
            if self.adapters.admits(request):
                self.waiting_for_slot.remove(request)
                self.start(request)

    def drop_prefilled(self) -> None:
        """Drop prompts without prefill left. Call after planning chunks or a cache hit."""
        self.prefilling = list(filter(self.is_prompt, self.prefilling))

    def remove(self, request: Request) -> None:
        if request.slot >= 0:
            self._vacate(request)
        elif request.pages:
            self.waiting_for_slot.remove(request)
        else:
            self.waiting.remove(request)

    def preempt(self, request: Request, reason: WaitReason, step: StepPlan | None = None) -> None:
        """Free the request's pages and queue it again; it may find its prefix in the cache later."""
        assert not request.pinned, "a peer may be reading its pages"
        self.num_preemptions += 1
        self._kv.release(request)
        self._vacate(request)
        request.scheduling.aging = -math.inf
        request.scheduling.preempted_for = reason
        self.waiting.add(request)
        if step is not None:
            step.preempted.append(request)

    def victims(self, candidates: list[Request]) -> list[Request]:
        """`candidates`, which are running, in order of preemption."""
        key = self._rules.victim_key
        ordered = sorted(enumerate(candidates), key=lambda pair: (key(pair[1]), pair[0]), reverse=True)
        return [request for _, request in ordered]

    def _vacate(self, request: Request) -> None:
        self.running.remove(request)
        if request in self.prefilling:
            self.prefilling.remove(request)
        self._slots.append(request.slot)
        self.adapters.stop(request)
        request.slot = -1
