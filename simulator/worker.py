"""A simulated worker: the real engine on a simulated device, and what a worker adds to it.

Commands wait in an inbox until the engine is between two steps. A step is planned as late as the engine asks
for, so that requests that arrive meanwhile join it. A prompt of another worker's request ends here with its
first token, and its pages stay until its KV has arrived there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from common.kv_groups import ONE_GROUP, KVGroup
from engine.config import EngineConfig, Policy, SchedulerConfig
from engine.core.events import StepMeasured, StepOutput
from engine.core.request import Request
from engine.device.defaults import GPU_TOKEN_TILE
from engine.kv.manager.reservations import Reservation
from engine.loop.engine import Engine
from router.placement.account.load import WorkerLoad
from rpc.baton.v1 import worker_pb2
from simulator.device import StepCosts
from simulator.runner import Clock, FormulaRunner

_LOAD_INTERVAL_S: Final = 0.1
"""As in `worker/process/engine_loop.py`."""

COSTLY_CONTEXT: Final = 20_000.0
"""See `SchedulerConfig.costly_context`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    chunk_tokens: int | None = 16_384
    """None: whole prompts, in steps of `whole_tokens` where they are not longer."""
    whole_tokens: int = 40_960
    step_target_s: float | None = 0.020
    tpot_target_s: float | None = None
    """In place of `step_target_s`: see `SchedulerConfig`."""
    pause_target_s: float | None = None
    groups: tuple[KVGroup, ...] = ONE_GROUP
    num_pages: int = 52_000
    """Pages of all groups together."""
    page_size: int = 16
    max_running: int = 512
    state_slots: int = 0
    """For requests and checkpoints, of a model with recurrent states; 0: of one without."""
    radix_cache: bool = False
    policy: Policy = Policy.SHORTEST

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            model_path=Path("none"),
            page_size=self.page_size,
            num_pages=self.num_pages,
            max_model_len=self.num_pages * self.page_size,
            scheduler=SchedulerConfig(
                chunk_budget=self.chunk_tokens,
                chunked_prefill=self.chunk_tokens is not None,
                max_prefill_tokens=self.whole_tokens if self.chunk_tokens is None else None,
                max_running_requests=self.max_running,
                max_waiting_requests=1 << 30,
                itl_target_s=self.step_target_s,
                tpot_target_s=self.tpot_target_s,
                pause_target_s=self.pause_target_s,
                token_tile=GPU_TOKEN_TILE,
                costly_context=COSTLY_CONTEXT,
                policy=self.policy,
            ),
            radix_cache=self.radix_cache,
            overlap=True,
        )


@dataclass(slots=True)
class StepReport:
    """What a worker sends to the router after a step."""

    at: float
    load: worker_pb2.Load | None
    """Every `_LOAD_INTERVAL_S`, and when the worker has become idle."""
    num_commands: int
    """Covered by `load`."""
    measured: StepMeasured | None
    tokens: list[Request] = field(default_factory=list)
    """Requests with a new token."""
    ended: list[Request] = field(default_factory=list)
    progress: list[tuple[Request, int]] = field(default_factory=list)
    """Requests whose prompts are computed in part, and up to which token."""


class WorkerListener(Protocol):
    """Callbacks of a worker. Times are on its clock, and so up to a step ahead of the call."""

    def wake(self, worker: SimWorker, at: float) -> None:
        """Call `turn` at `at`, unless an earlier call is scheduled."""

    def started(self, worker: SimWorker, request: Request, now: float) -> None: ...

    def computed(self, worker: SimWorker, request: Request, upto: int, at: float) -> None:
        """The KV of prompt tokens [0, upto) is in the pool."""

    def token(self, worker: SimWorker, request: Request, at: float) -> None: ...

    def stepped(self, worker: SimWorker, report: StepReport) -> None: ...

    def keeps(self, worker: SimWorker, request: Request, at: float) -> bool:
        """The request has ended here. True: its pages stay until `release`."""
        ...

    def lent(self, worker: SimWorker, reservation: Reservation, now: float) -> None: ...


class SimWorker:
    """Implements the engine's hooks."""

    def __init__(
        self, number: int, settings: WorkerSettings, costs: StepCosts, listener: WorkerListener
    ) -> None:
        self.number = number
        self.settings = settings
        self._clock = Clock()
        self._runner = FormulaRunner(
            costs, self._clock, groups=settings.groups, state_slots=settings.state_slots, seed=number
        )
        self.engine = Engine(settings.engine_config(), hooks=self, runner=self._runner, clock=self._clock.now)
        self.load = WorkerLoad(self.engine.kv.needs.of_request, settings.max_running)
        """The router's account of this worker."""
        self.num_commands = 0
        """Commands sent."""
        self._num_handled = 0
        self.due = math.inf
        """When `turn` is called next."""
        self._load_due = 0.0
        self._listener = listener
        self._inbox: deque[Callable[[], object]] = deque()
        self._progress: list[tuple[Request, int]] = []
        self._borrowers: deque[Request] = deque()
        """Requests whose KV will arrive, waiting for pages."""

    # ------------------------------------------------------------------------------ commands

    def submit(self, request: Request, now: float) -> None:
        self._post(lambda: self.engine.submit(request), now)

    def reserve(self, request: Request, now: float) -> None:
        self._post(lambda: self._borrowers.append(request), now)

    def admit_remote(self, reservation: Reservation, now: float, num_computed: int) -> None:
        self._post(lambda: self.engine.admit_remote(reservation.request, reservation, num_computed), now)

    def release(self, request: Request, now: float) -> None:
        self._post(lambda: self.engine.release(request), now)

    def _post(self, command: Callable[[], object], now: float) -> None:
        self.num_commands += 1
        self._inbox.append(command)
        self._wake(now)

    def _wake(self, at: float) -> None:
        """Not before the worker's own clock: until then, it is in a step."""
        at = max(at, self._clock.time)
        if at < self.due:
            self.due = at
            self._listener.wake(self, at)

    # ------------------------------------------------------------------------------ the engine loop

    def turn(self, now: float) -> None:
        """As an iteration of a worker's engine loop."""
        self.due = math.inf
        self._clock.wait_until(now)
        while self._inbox:
            self._inbox.popleft()()
            self._num_handled += 1
        self._lend()
        if not self.engine.has_work:
            return
        plan_at = self.engine.plan_at()
        if plan_at > self._clock.time:
            self._wake(plan_at)
            return
        output = self.engine.step(block=False)
        if output.blocked:
            self._wake(self._runner.free_at)
            return
        if output.completed:
            self._report(output)
        self.engine.proceed()
        if output.completed or output.num_tokens:
            self._wake(self._clock.time)

    def _lend(self) -> None:
        while self._borrowers:
            reservation = self.engine.reserve(self._borrowers[0])
            if reservation is None:
                return
            self._borrowers.popleft()
            self._listener.lent(self, reservation, self._clock.time)

    def _report(self, output: StepOutput) -> None:
        at = self._clock.time
        for token in output.tokens:
            self._listener.token(self, token.request, at)
        progress, self._progress = self._progress, []
        load = None
        if at >= self._load_due or not self.engine.has_work:
            load, self._load_due = self.load_report(), at + _LOAD_INTERVAL_S
        report = StepReport(
            at,
            load,
            self._num_handled,
            output.measured,
            [token.request for token in output.tokens],
            [token.request for token in output.tokens if token.finish is not None],
            progress,
        )
        self._listener.stepped(self, report)

    def load_report(self) -> worker_pb2.Load:
        """As a worker reports its load."""
        stats, needs = self.engine.stats(), self.engine.kv.needs
        return worker_pb2.Load(
            total_pages=stats.pages.total,
            free_pages=stats.available_pages,
            running=stats.running,
            starved=stats.starved,
            incoming=len(self.engine.kv.reservations.active),
            queued_handoffs=len(self._borrowers),
            queued_pages=sum(needs.pages(needs.blocks(request.num_tokens)) for request in self._borrowers),
        )

    # ------------------------------------------------------------------------------ the engine's hooks

    def on_started(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._listener.started(self, request, self._clock.time)

    def on_computed(self, request: Request, upto: int) -> None:
        prompt_tokens = len(request.prompt)
        if upto <= prompt_tokens:
            self._listener.computed(self, request, upto, self._clock.time)
            if upto < prompt_tokens:
                self._progress.append((request, upto))

    def on_finished(self, request: Request) -> bool:
        return self._listener.keeps(self, request, self._clock.time)
