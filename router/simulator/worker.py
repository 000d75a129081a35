"""A simulated worker: the real scheduler and KV manager, with a formula for the device.

As in the engine, step N + 1 is planned while step N runs, as late as possible without leaving the device
idle, so that requests that arrive meanwhile join it. A prompt of another worker's request ends here with its
first token, and its pages stay until its KV has arrived there.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol

from engine.config import PATIENCE, Policy, SchedulerConfig
from engine.core.kv_manager import KVManager, Reservation
from engine.core.plan import Chunk, ChunkKind, StepPlan
from engine.core.request import Request
from engine.core.sampling_params import FinishReason
from engine.sched.itl_controller import PromptCost
from engine.sched.scheduler import Scheduler
from router.placement import StepWork
from router.simulator.device import DeviceCosts, work_of
from router.workers.load import WorkerLoad
from rpc.baton.v1 import worker_pb2

__all__ = ["Listener", "SimWorker", "StepReport", "WorkerSettings"]

_TOKEN: Final = 5
_MARGIN_S: Final = 0.3e-3
"""How much earlier than necessary a step is planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    chunk_tokens: int | None = 16_384
    """None: whole prompts, in steps of `whole_tokens` where they are not longer."""
    whole_tokens: int = 40_960
    step_target_s: float | None = 0.020
    tpot_target_s: float | None = None
    """In place of `step_target_s`: see `SchedulerConfig`."""
    pause_target_s: float | None = None
    num_pages: int = 52_000
    page_size: int = 16
    max_running: int = 512
    longest_chunk: int | None = None
    radix_cache: bool = False
    policy: Policy = Policy.SHORTEST
    patience: float = PATIENCE


@dataclass(slots=True)
class StepReport:
    """A worker's report about a step when it ends."""

    at: float
    work: StepWork
    seconds: float
    tokens: list[Request] = field(default_factory=list)
    """Requests with a new token."""
    ended: list[Request] = field(default_factory=list)
    progress: list[tuple[Request, int]] = field(default_factory=list)
    """Requests whose prompts are computed in part, and up to which token."""


class Listener(Protocol):
    """Callbacks of a worker; times may be a few milliseconds ahead of the call."""

    def wake(self, worker: SimWorker, at: float) -> None:
        """Call `turn` at `at`, unless an earlier call is scheduled."""

    def started(self, worker: SimWorker, request: Request, now: float) -> None: ...

    def computed(self, worker: SimWorker, request: Request, upto: int, at: float) -> None: ...

    def token(self, worker: SimWorker, request: Request, at: float) -> None: ...

    def stepped(self, worker: SimWorker, report: StepReport) -> None: ...

    def keeps(self, worker: SimWorker, request: Request, at: float) -> bool:
        """The request has ended here. True: its pages stay until `release`."""
        ...

    def lent(self, worker: SimWorker, reservation: Reservation, now: float) -> None: ...


@dataclass(slots=True)
class _Step:
    plan: StepPlan
    work: StepWork
    begins: float
    ends: float


class SimWorker:
    def __init__(
        self,
        number: int,
        settings: WorkerSettings,
        costs: DeviceCosts,
        listener: Listener,
        *,
        costly_context: float = 20_000.0,
        tile: int = 128,
    ) -> None:
        self.number = number
        self.settings = settings
        self.kv = KVManager(settings.num_pages, settings.page_size, radix_cache=settings.radix_cache)
        self.scheduler = Scheduler(
            SchedulerConfig(
                chunk_budget=settings.chunk_tokens,
                chunked_prefill=settings.chunk_tokens is not None,
                max_prefill_tokens=settings.whole_tokens if settings.chunk_tokens is None else None,
                max_running_requests=settings.max_running,
                max_waiting_requests=1 << 30,
                long_prefill_token_threshold=settings.longest_chunk,
                itl_target_s=settings.step_target_s,
                tpot_target_s=settings.tpot_target_s,
                pause_target_s=settings.pause_target_s,
                token_tile=tile,
                costly_context=costly_context,
                policy=settings.policy,
                prompt_patience=settings.patience,
            ),
            self.kv,
            context=settings.num_pages * settings.page_size,
        )
        self.load = WorkerLoad(settings.page_size, settings.max_running)
        """The router's account of this worker."""
        self.num_commands = 0
        self.due = math.inf
        """When `turn` is called next."""
        self.busy_s = 0.0
        self._costs = costs
        self._listener = listener
        self._cost = PromptCost(costly_context)
        self._noise = random.Random(number)
        self._step: _Step | None = None
        self._completed_at = -math.inf
        self._borrowers: deque[Request] = deque()
        """Requests whose KV will arrive, waiting for pages."""

    def report(self) -> worker_pb2.Load:
        """As a worker reports its load."""
        kv, scheduler, size = self.kv, self.scheduler, self.settings.page_size
        return worker_pb2.Load(
            total_pages=self.settings.num_pages,
            free_pages=kv.num_available,
            running=scheduler.num_active,
            starved=scheduler.num_waiting if scheduler.wants_pages else 0,
            incoming=len(kv.reservations),
            queued_handoffs=len(self._borrowers),
            queued_pages=sum(-(-request.num_tokens // size) for request in self._borrowers),
        )

    def submit(self, request: Request, now: float) -> None:
        self.scheduler.submit(request)
        self._poke(now)

    def reserve(self, request: Request, now: float) -> None:
        self._borrowers.append(request)
        self._lend(now)

    def admit_remote(self, reservation: Reservation, now: float, num_computed: int) -> None:
        request = reservation.request
        self.kv.arrived(reservation)
        request.num_computed = max(num_computed, reservation.first_token)
        self.scheduler.adopt(request)
        self._poke(now)

    def release(self, request: Request, now: float) -> None:
        self.kv.release(request)
        if self.scheduler.num_waiting or self._borrowers:
            self._poke(now)

    def turn(self, now: float) -> None:
        """Plan and launch the next step, and complete the one that is about to end."""
        self.due = math.inf
        self._lend(now)
        plan = self.scheduler.plan(now)
        for request in plan.started:
            self._listener.started(self, request, now)
        before, self._step = self._step, None
        if plan:
            self._step = self._launch(plan, now, before)
        if before is not None:
            self._complete(before)
        if self._step is not None:
            self._plan_next(now, self._step)
            return
        self._completed_at = -math.inf
        if before is not None and (self.scheduler.running or self.scheduler.num_waiting or self._borrowers):
            self._poke(before.ends)

    def _poke(self, now: float) -> None:
        """Schedule a turn now, unless one is scheduled or a step is in flight."""
        if self._step is None and self.due == math.inf:
            self.due = now
            self._listener.wake(self, now)

    def _launch(self, plan: StepPlan, now: float, before: _Step | None) -> _Step:
        costs = self._costs
        work = work_of(plan)
        ready = now + costs.host + (costs.host_prompts if work.prompt_tokens else 0.0)
        begins = max(ready, before.ends) if before is not None else ready
        seconds = costs.seconds(work) * self._noise.uniform(0.985, 1.03)
        self.busy_s += seconds
        return _Step(plan, work, begins, begins + seconds)

    def _plan_next(self, now: float, step: _Step) -> None:
        crowded = self.scheduler.is_crowded
        lead = self._costs.host + _MARGIN_S
        if self.scheduler.has_prompts:
            lead += self._costs.host_prompts
        self.due = max(now, step.begins if crowded else step.ends - lead)
        self._listener.wake(self, self.due)

    def _complete(self, step: _Step) -> None:
        at = step.ends
        plan, work = step.plan, step.work
        if work.decodes and self._completed_at > -math.inf:
            self.scheduler.observe(self._cost.of_step(plan), at - self._completed_at)
        self._completed_at = at
        report = StepReport(at, work, at - step.begins)
        for chunk in plan.chunks:
            self._finish_chunk(chunk, at, report)
        self._listener.stepped(self, report)

    def _finish_chunk(self, chunk: Chunk, at: float, report: StepReport) -> None:
        request = chunk.request
        if chunk.kind is ChunkKind.PREFILL:
            self.scheduler.complete(chunk)
            self._listener.computed(self, request, chunk.end, at)
        if chunk.output_index is None:
            report.progress.append((request, chunk.end))
            return
        request.output[chunk.output_index] = _TOKEN
        report.tokens.append(request)
        self._listener.token(self, request, at)
        if chunk.output_index + 1 >= request.sampling.max_tokens:
            report.ended.append(request)
            self._end(request, at)

    def _end(self, request: Request, at: float) -> None:
        self.scheduler.remove(request, FinishReason.LENGTH)
        if not self._listener.keeps(self, request, at):
            self.kv.release(request)

    def _lend(self, now: float) -> None:
        while self._borrowers:
            active = self.scheduler.num_active + len(self.kv.reservations)
            if active >= self.settings.max_running or self.scheduler.wants_pages:
                return
            reservation = self.kv.reserve(self._borrowers[0], headroom=active)
            if reservation is None:
                return
            self._borrowers.popleft()
            self._listener.lent(self, reservation, now)
