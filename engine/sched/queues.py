"""Where requests are: waiting, running, or here with their KV and without a slot; and the moves between."""

from __future__ import annotations

import math
from collections import deque

from engine.config import Batching, SchedulerConfig
from engine.core.kv_manager import KVManager
from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.waits import WaitClock
from engine.sched.policy import PolicyRules
from engine.sched.waiting_queue import WaitingQueue

__all__ = ["Queues"]


class Queues:
    def __init__(
        self, config: SchedulerConfig, kv: KVManager, rules: PolicyRules, waiting: WaitingQueue
    ) -> None:
        self.waiting = waiting
        self.adopted: deque[Request] = deque()
        """Their KV is here, and only a slot is missing. In order of arrival."""
        self.running: list[Request] = []
        """In order of admission."""
        self.reading: list[Request] = []
        """Prompts in progress: those of `running` for which `is_prompt` holds, in the same order."""
        self.waits = WaitClock()
        self.num_preemptions = 0
        self._kv = kv
        self._rules = rules
        self._slots = list(range(config.max_running_requests - 1, -1, -1))
        self._separate = config.batching is not Batching.MIXED
        self._number = 0

    @property
    def has_slot(self) -> bool:
        return bool(self._slots)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.adopted)

    def is_prompt(self, request: Request) -> bool:
        """Whether it has more than one token to compute, or a last one that is no decode: in separate batches
        that of a prompt, always that of a request from which no token is wanted."""
        pending = request.num_pending
        if pending != 1:
            return pending > 1
        return request.prefill_only or (self._separate and not request.output)

    def register(self, request: Request, now: float) -> None:
        """Every request, before it is in any of the queues."""
        self._number += 1
        request.number = self._number
        request.tokens_before = self.waiting.admitted_tokens
        request.wait_mark = self.waits.mark(now)

    def start(self, request: Request) -> None:
        request.slot = self._slots.pop()
        self.running.append(request)
        if self.is_prompt(request):
            self.reading.append(request)

    def start_adopted(self) -> None:
        """They have their pages and take one token of a step: no prompt is a reason for them to wait."""
        while self.adopted and self._slots:
            self.start(self.adopted.popleft())

    def read(self) -> None:
        """Chunks were planned, or pages found in the cache: forget prompts that have none left."""
        self.reading = list(filter(self.is_prompt, self.reading))

    def remove(self, request: Request) -> None:
        if request.slot >= 0:
            self._vacate(request)
        elif request.pages:
            self.adopted.remove(request)
        else:
            self.waiting.remove(request)

    def preempt(self, request: Request, step: StepPlan | None = None) -> None:
        """Give its pages back and let it start over, later; what the cache keeps of it, it finds again."""
        assert not request.pinned, "a peer may be reading its pages"
        self.num_preemptions += 1
        self._kv.release(request)
        self._vacate(request)
        request.handicap = -math.inf
        self.waiting.add(request)
        if step is not None:
            step.preempted.append(request)

    def victims(self, candidates: list[Request]) -> list[Request]:
        """`candidates`, which are running, in the order in which to preempt them."""
        key = self._rules.victim_key
        ordered = sorted(enumerate(candidates), key=lambda pair: (key(pair[1]), pair[0]), reverse=True)
        return [request for _, request in ordered]

    def _vacate(self, request: Request) -> None:
        self.running.remove(request)
        if request in self.reading:
            self.reading.remove(request)
        self._slots.append(request.slot)
        request.slot = -1
