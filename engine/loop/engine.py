"""The engine: requests in, tokens out, one step at a time.

It has one caller, on one thread. Every worker has the same engine with the same hooks: what a request needs
(a prefill whose KV is sent, KV that arrives, or both) is said by the calls for it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from engine.config import EngineConfig
from engine.core.draft_source import DraftSource
from engine.core.events import Occupancy, StepMeasured, StepOutput
from engine.core.request import Request
from engine.core.request_state import NO_SLOT
from engine.core.sampling_params import FinishReason
from engine.core.waits import WaitReason
from engine.core.weights import NewWeights, WeightsIdentity
from engine.errors import UnservableRequest
from engine.executor.base import Runner, StepInFlight, StepResult
from engine.executor.build import build_runner
from engine.grammar.compiler import GrammarCompiler
from engine.kv.cache.pages import PageCounts
from engine.kv.manager.arriving_prefixes import ArrivingPrefix
from engine.kv.manager.kv_manager import KVManager
from engine.kv.manager.page_audit import GroupPages, pages_by_kind
from engine.kv.manager.reservations import Reservation
from engine.loop.hooks import NO_HOOKS, Hooks
from engine.loop.in_flight import InFlight, Launched
from engine.loop.pauses.causes import Cause
from engine.loop.pauses.laps import Laps
from engine.loop.replace_weights import replace_weights
from engine.loop.requests import Requests
from engine.loop.stats import EngineStats
from engine.loop.step_clock import StepClock
from engine.loop.step_results import StepResults
from engine.sched.plan_log import log_chunks
from engine.sched.scheduler import Scheduler


class Engine:
    """Owns the model, the KV pool and every request in them."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        hooks: Hooks = NO_HOOKS,
        runner: Runner[Any] | None = None,
        drafts: DraftSource | None = None,
        clock: Callable[[], float] = time.monotonic,
        laps: Laps | None = None,
    ) -> None:
        """`laps`: where the time of steps is recorded, if not in laps of the engine's own."""
        self.config = config
        self.laps: Final = Laps() if laps is None else laps
        self._launching = Cause.DEVICE if config.device == "cpu" else Cause.LAUNCH
        """A CPU computes what is launched."""
        if runner is None:
            runner, drafts = build_runner(config)
        self.runner: Runner[Any] = runner
        self.drafts = drafts
        num_pages = config.num_pages or self.runner.num_pages
        self.kv = KVManager(
            num_pages,
            config.page_size,
            groups=self.runner.spec.kv_groups,
            largest_chunk=config.scheduler.largest_chunk(config.max_model_len),
            radix_cache=config.radix_cache,
            num_state_slots=self.runner.num_state_slots,
            retained_share=config.retained_kv_share,
            sidecars=self.runner.sidecars,
        )
        self.grammars = GrammarCompiler(config.model_path, self.runner.spec)
        """Compiles what `submit` and `reserve` find not compiled, but may be asked before, on any thread."""
        self.max_tokens = self.kv.needs.of_request.largest_request(num_pages, config.max_model_len)
        """A request that fills the pool alone ends there, as one that fills the model's context does."""
        slots, vision = self.runner.num_state_slots or sys.maxsize, self.runner.spec.vision
        self.max_running = min(config.scheduler.max_running_requests, slots)
        """Requests that may run at a time: each takes a slot, if the model has recurrent states."""
        self.scheduler = Scheduler(
            config.scheduler,
            self.kv,
            context=self.max_tokens,
            vocab_size=self.runner.spec.vocab_size,
            seed=config.seed,
            max_rows=config.max_decode_rows,
            max_edited_drafts=config.max_edited_drafts,
            drafts=self.drafts,
            max_loras=0 if config.lora is None else config.lora.max_loras,
            whole_images=vision is not None and vision.bidirectional,
        )
        self._clock = clock
        self._in_flight = InFlight(self.kv.needs, self.runner.pages_of_slot)
        parts = self.scheduler, self.kv, self.grammars, self._in_flight
        self._requests = Requests(*parts, hooks, clock, config, self.runner.adapters)
        self.adapters: Final = self._requests.adapters
        self._crowded = False
        """The last step had no room for all waiting requests: a new one would not join the next step."""
        self._times = StepClock(config.scheduler, self.scheduler, clock)
        self._results = StepResults(
            self._requests, self.scheduler, self._times, self.runner.spec, max_tokens=self.max_tokens
        )
        self._cache_hit_tokens = 0

    @property
    def hooks(self) -> Hooks:
        return self._requests.hooks

    @hooks.setter
    def hooks(self, hooks: Hooks) -> None:
        self._requests.hooks = hooks

    @property
    def has_work(self) -> bool:
        return bool(self._requests.live) or self._in_flight.launched is not None

    @property
    def weights(self) -> WeightsIdentity:
        """Identity of the weights. The first call may read all of them."""
        return self.runner.weights

    def submit(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequest, QueueFull, or DeadlineUnreachable (a QueueFull)."""
        pools = request.read is not None and bool(request.read.pooling)
        if pools != (self.config.pooling is not None):
            raise UnservableRequest(
                "this model computes vectors" if not pools else "this model generates text"
            )
        self._requests.check_new(request, self.runner.spec)
        request.arrival = self._clock()
        self.kv.routed.look_up(request)
        self.scheduler.submit(request, request.arrival, self._times.prefill_rate)
        self._take_in(request)

    def abort(self, request_id: int) -> bool:
        """End a request now; False if there is none of that id."""
        request = self._requests.live.get(request_id)
        if request is None:
            return False
        self._requests.end(request, FinishReason.ABORT)
        return True

    def step(self, *, block: bool = True) -> StepOutput:
        """Compute one step and return the tokens it brought.

        With overlap, the tokens are those of the step before: this one is still running on the device while
        its successor is planned. Only its first part is enqueued; `proceed` enqueues the rest.

        With nothing to plan, it waits for the step in flight. `block` False leaves that to the caller: the
        output is `blocked` until `step_in_flight` is done; a request that comes meanwhile is planned at once.
        A step with drafts is waited for before the next is planned, which depends on how many are right.
        """
        output, lap = StepOutput(), self.laps.lap
        self.kv.expire(self._clock())
        lap(Cause.PLAN)
        self.proceed()
        verifying = self._in_flight.launched
        if verifying is not None and verifying.plan.num_drafted:
            if not (block or verifying.step.done()):
                output.blocked = True
                return output
            self._in_flight.launched = None
            self._finish(verifying, output)
        self._tend_tiers()
        lap(Cause.COPIES)
        began = self._clock()
        plan = self.scheduler.plan(began)
        self._crowded = self.scheduler.is_crowded
        self._cache_hit_tokens += sum(request.num_cached or 0 for request in plan.started)
        lap(Cause.PLAN)
        if plan.started:
            self.hooks.on_started(plan.started)
            lap(Cause.SEND)
        # Pages of a preempted request are free now, and the step in flight may write them: it is waited for.
        before = self._in_flight.launched
        if self.kv.tiers is not None:
            self.kv.tiers.send((lambda _: True) if plan.preempted else self._in_flight.may_write)
            lap(Cause.COPIES)
        if not (block or plan.preempted or plan or before is None or before.step.done()):
            output.blocked = True
            output.describe(plan)
            return output
        launched: Launched | None = None
        if plan:
            step = self.runner.prepare(plan)
            if self.config.overlap:
                self._times.prepared(plan, began, dry=before is not None and before.step.done())
            lap(Cause.ENCODE if plan.has_images else Cause.BATCH)
            at = self._clock()
            launched = Launched(plan, self.runner.launch(step), at)
            lap(self._launching)
        output.describe(plan)
        log_chunks(plan)
        if self.config.overlap:
            launched, self._in_flight.launched = self._in_flight.launched, launched
        if launched is not None:
            self._finish(launched, output)
        else:
            output.outputs += self.kv.routed.take_found()
            if not (plan and output.completed):
                self._times.rest()
        return output

    def _finish(self, launched: Launched, output: StepOutput) -> None:
        """Wait for a step that is `_launched` no more, and report what it brought."""
        output.outputs += self.kv.routed.take_found()
        waited = not launched.step.done()
        result = self._result_of(launched)
        more = self._in_flight.launched is not None
        seconds = self._times.ended(launched.at, waited=waited, more=more)
        accepted = self._results.complete(launched.plan, result, output)
        output.expected_s = self._times.expected_s
        self.laps.lap(Cause.RESULTS)
        if seconds is not None and not launched.plan.has_images:
            output.measured = StepMeasured.of(launched.plan, seconds, accepted)

    @property
    def step_in_flight(self) -> StepInFlight | None:
        """With overlap: the step on the device, whose tokens are not reported yet."""
        return None if self._in_flight.launched is None else self._in_flight.launched.step

    def proceed(self) -> None:
        """Enqueue the rest of the step in flight. Call it after the tokens of `step` are sent.
        It may take milliseconds, which would delay the tokens of a whole batch. The layers enqueued by `step`
        keep the device busy meanwhile, but not for long; `step` and `reserve` call it if the caller did not.
        """
        if self._in_flight.launched is not None:
            while self._in_flight.launched.step.proceed():
                pass
            self.laps.lap(self._launching)

    def _result_of(self, launched: Launched) -> StepResult:
        """Wait for the result; meanwhile, enqueue the step after it."""
        behind = self._in_flight.launched
        while behind is not None and not launched.step.done() and behind.step.proceed_early():
            pass
        self.laps.lap(self._launching)
        result = launched.step.result()
        self.laps.waited()
        if self.kv.tiers is not None:
            self.kv.tiers.settle()
            self.laps.lap(Cause.COPIES)
        return result

    def poll_tiers(self) -> None:
        """Take the results of copies between the KV pool and its tiers, and start others.

        Call it, or `step`, whenever the tiers' copier has results or a request has come: what tiers have of
        its KV comes up while the step in flight is computed. O(tokens of the first waiting requests).
        """
        if self.kv.tiers is not None:
            self._tend_tiers()
            self.scheduler.promote_ahead(self._clock())
            self.kv.tiers.send(self._in_flight.may_write)
            self.laps.lap(Cause.COPIES)

    def _tend_tiers(self) -> None:
        if (tiers := self.kv.tiers) is not None:
            idle, rate = self._in_flight.launched is None, self.prefill_rate
            tiers.poll_tiers(self._clock(), settled=idle, prefill_rate=rate)
            tiers.send(self._in_flight.may_write)

    def plan_at(self) -> float:
        """When to call `step` next, by this engine's clock, if more requests may arrive before.

        With overlap, a request that arrives after a step is planned cannot join it, so planning early while
        the device is busy delays new requests. A caller with nothing else to do may call `step` at any time.
        """
        if self._in_flight.launched is None or self._crowded:
            return -math.inf
        return self._times.plan_at()

    def computed(self, request: Request) -> int:
        """Tokens whose KV is in the pool, without those that the step in flight computes. O(chunks)."""
        return self._in_flight.computed(request)

    def reserve(self, request: Request, room: int = 0) -> Reservation | None:
        """Set pages aside for a request whose KV another worker sends; None while there are too few.

        `room`: tokens by which it may grow until then. Raises InvalidRequest if the pool is too small.
        """
        request.num_scored, request.num_routed = request.scores_until, request.num_tokens  # by the sender
        self._requests.check_new(request, self.runner.spec)
        if request.num_tokens >= self.max_tokens:
            raise UnservableRequest(f"{request.num_tokens} tokens do not fit: {self.max_tokens} at most")
        active = self.scheduler.num_active + len(self.kv.reservations.active)
        if active >= self.config.scheduler.max_running_requests or self.scheduler.wants_pages:
            return None  # a preempted request, or one that waits for pages, must not starve behind newcomers
        most = self.max_tokens - request.num_tokens
        reservation = self.kv.reserve(request, headroom=active, room=min(room, most))
        if reservation is None:
            return None
        request.arrival = self._clock()
        self._wait_for_writes([*reservation.incoming, *self.state_pages(request)])
        return reservation

    def expect(self, request: Request, num_tokens: int, owner: int) -> ArrivingPrefix | None:
        """Set pages aside for the KV of a prefix that another worker has cached, before `submit`.

        None if there is nothing to send, or too little room now. `owner`: of the pages, such as the handoff.
        """
        active = self.scheduler.num_active + len(self.kv.reservations.active)
        if not self.kv.cache.enabled or self.scheduler.wants_pages:
            return None
        prefix = self.kv.peers.expect(request, num_tokens, active, owner)
        if prefix is not None:
            self._wait_for_writes([*prefix.pages, *self.pages_of(prefix.slot)])
        return prefix

    def _wait_for_writes(self, pages: Sequence[int]) -> None:
        """See `InFlight.wait_for_writes`. Between two steps, when a command needs pages."""
        self.laps.lap(Cause.COMMANDS)
        self._in_flight.wait_for_writes(pages)
        self.laps.waited()

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens that it computes a second; math.inf before that was measured."""
        return self._times.prefill_rate

    def state_pages(self, request: Request) -> Sequence[int]:
        """The memory of a request's recurrent state, counted in pages; empty for models without one."""
        return () if request.state is None else self.pages_of(request.state.slot)

    def pages_of(self, slot: int) -> Sequence[int]:
        """The memory of a slot for states, counted in pages; empty for NO_SLOT."""
        return () if slot == NO_SLOT else self.runner.pages_of_slot(slot)

    def admit_remote(self, request: Request, reservation: Reservation, num_computed: int) -> None:
        """The KV of `num_computed` tokens has arrived: continue from there. The output so far is complete."""
        self.kv.reservations.arrived(reservation)
        request.num_computed = max(num_computed, reservation.first_token)
        request.num_routed = request.num_computed
        self.kv.tables.pass_by(request, request.num_computed)
        now = self._clock()
        request.scheduling.waited = {WaitReason.TRANSFER: now - request.arrival}
        request.arrival = now
        self.scheduler.add_remote(request, now)
        self._take_in(request)

    def refill(self, new: NewWeights) -> None:
        """See `replace_weights`. Call it between two steps, without requests."""
        replace_weights(new, self.runner, self.kv, self._requests, busy=self.has_work)

    def release(self, request: Request) -> None:
        """Release pages that `Hooks.on_finished` kept."""
        self._requests.release_kept(request)

    def check_pages(self) -> PageCounts:
        """Raises PageLeak unless every page has exactly one owner. O(pages): for idle times and tests."""
        if self.drafts is not None:
            self.drafts.check_pages()
        return self.kv.check([*self._requests.owners()])

    def pages_by_kind(self) -> list[GroupPages]:
        """Pages of each kind of KV groups. O(pages) if there are several kinds: for scrapes, not for every
        step.
        """
        owners = [*self._requests.owners()]
        return pages_by_kind(self.kv.needs.groups, self.kv.pool, self.kv.cache, owners)

    def occupancy(self) -> Occupancy:
        total = self.kv.pool.num_pages
        return Occupancy(
            waiting=self.scheduler.num_waiting,
            running=len(self.scheduler.running),
            used_pages=total - self.kv.num_available,
            total_pages=total,
            paced_tokens=self.scheduler.prompt_budget,
        )

    def stats(self) -> EngineStats:
        return EngineStats.of(self.scheduler, self.kv, self._results, self._requests, self._cache_hit_tokens)

    def close(self) -> None:
        self.runner.close()
        if self.drafts is not None:
            self.drafts.close()

    def _take_in(self, request: Request) -> None:
        if not self.has_work:
            self._times.rest()
        self._requests.live[request.id] = request
