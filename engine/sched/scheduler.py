"""Which tokens the next step computes. Plain Python: no tensors, no sockets, no clock."""

from __future__ import annotations

import math
import random
from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from engine.config import PATIENCE, Batching, Policy
from engine.core.kv_manager import KVManager
from engine.core.plan import Chunk, StepPlan
from engine.core.request import PENDING, Request
from engine.core.sampling_params import FinishReason
from engine.errors import InvalidRequest, QueueFull
from engine.sched.admission_forecast import AdmissionForecast
from engine.sched.itl_controller import ITLController, PromptCost, whole_tiles
from engine.sched.page_forecast import OutputLengths
from engine.sched.policy import rank
from engine.sched.prefixes_in_flight import PrefixesInFlight
from engine.sched.token_budget import Progress, split_budget, unfilled, whole_prompts

__all__ = ["Limits", "Scheduler"]

_turn = attrgetter("turn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    budget: int | None
    """Tokens a step; None: chunking is off."""
    max_running: int
    max_tokens: int
    """Prompt and output of one request together."""
    max_waiting: int = 4096
    longest_chunk: int | None = None
    itl_target_s: float | None = None
    """Chunks beside decodes are kept so small that steps take about so long."""
    token_tile: int = 1
    """Such steps have a multiple of so many tokens, if there are prompts enough."""
    costly_context: float = math.inf
    """See PromptCost."""
    batching: Batching = Batching.MIXED
    policy: Policy = Policy.SHORTEST
    patience: float = PATIENCE
    """See `EngineConfig.prompt_patience`. Raises ValueError unless it is finite and above 0."""

    def __post_init__(self) -> None:
        if not 0 < self.patience < math.inf:
            raise ValueError(f"patience {self.patience}: use a finite number above 0, such as {PATIENCE:g}")


class Scheduler:
    """Keeps the waiting and the running requests and plans one step at a time.

    There are no phases: a prompt, a decode, a resumed request and one whose KV came from another worker
    differ only in how many tokens they have to catch up with.
    """

    def __init__(self, limits: Limits, kv: KVManager, *, seed: int = 0) -> None:
        self.limits = limits
        self.kv = kv
        self.waiting: list[Request] = []
        """By `Request.turn`: those that were preempted first."""
        self.adopted: deque[Request] = deque()
        """Their KV is here, and only a slot is missing. In order of arrival."""
        self.running: list[Request] = []
        """In order of admission. The last that is not pinned is the first to be preempted."""
        self.num_preemptions = 0
        self.itl_controller = (
            None
            if limits.itl_target_s is None or limits.budget is None
            else ITLController(limits.itl_target_s, limits.budget)
        )
        self._cost = PromptCost(limits.costly_context)
        self._slots = list(range(limits.max_running - 1, -1, -1))
        self._rng = random.Random(seed)
        self._lengths = OutputLengths()
        self._in_flight = PrefixesInFlight(kv.page_size)
        """Chunks of steps that have not completed; empty without a prefix cache."""
        self._short_of_pages = False
        """Whether the last plan left a request waiting because there were no pages for it."""
        self._submitted = 0
        """Prompt tokens submitted so far, without those that were cached then."""
        self._prompts_were_last = False
        self._is_reading = False
        """Whether the last plan left prompts to be read; to look for them takes a quarter of planning."""

    def submit(self, request: Request) -> None:
        """Raises InvalidRequest for one that can never run, QueueFull if too many wait."""
        if request.num_tokens >= self.limits.max_tokens:
            raise InvalidRequest(
                f"{request.num_tokens} tokens leave no room for an answer: "
                f"the context holds {self.limits.max_tokens}"
            )
        if len(self.waiting) >= self.limits.max_waiting:
            raise QueueFull(f"{len(self.waiting)} requests wait already")
        if self.kv.cache is not None:
            cached = self.kv.cache.match(request.tokens(0, request.num_tokens - 1), touch=False)
            request.num_expected = len(cached.pages) * self.kv.page_size
        request.handicap = self._submitted / self.limits.patience
        self._submitted += request.num_pending - request.num_expected
        insort(self.waiting, request, key=_turn)

    def adopt(self, request: Request) -> None:
        """A request whose KV is here already: it decodes in the next step, or as soon as a slot is free."""
        self.adopted.append(request)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.adopted)

    @property
    def wants_pages(self) -> bool:
        """Whether a request waits for pages: it found none, or was preempted for their sake."""
        return bool(self.waiting) and (self._short_of_pages or self.waiting[0].num_cached is not None)

    @property
    def is_crowded(self) -> bool:
        """Whether a request that comes now would wait for a slot or for pages, however short it is."""
        return self.num_waiting > 0 and (not self._slots or self.wants_pages)

    def plan(self) -> StepPlan:
        step = StepPlan()
        self._admit_adopted()
        self._admit_waiting(step)
        # First, for a prompt that is found in the cache up to its last token decodes in this very step: left
        # for the next, this step might be empty, after which the engine's caller sleeps.
        for request in self._prompts():
            self.kv.catch_up(request)
        decodes: list[Chunk] = []
        prompts: list[Chunk] = []
        if not self._prompts_have_their_turn():
            decodes = self._continue_decodes(step)
        reading = sorted(self._prompts(), key=_turn)
        if self.limits.batching is Batching.MIXED or not decodes:
            prompts = self._continue_prompts(reading, len(decodes))
        self._is_reading = any(r.num_pending > 1 for r in reading)
        self._prompts_were_last = bool(prompts)
        # Attention runs longer chunks and single tokens through different kernels; see Batch.
        chunks = prompts + decodes
        step.chunks = [c for c in chunks if c.length > 1] + [c for c in chunks if c.length == 1]
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
        else:
            (self.adopted if request.pages else self.waiting).remove(request)

    def preempt(self, request: Request) -> None:
        """Give its pages back and let it start over, later; what the cache keeps of it, it finds again."""
        assert not request.pinned, "a peer may be reading its pages"
        self.num_preemptions += 1
        self.kv.release(request)
        self._vacate(request)
        request.handicap = -math.inf
        self.waiting.insert(0, request)

    def _vacate(self, request: Request) -> None:
        self.running.remove(request)
        self._slots.append(request.slot)
        request.slot = -1

    def _prompts_have_their_turn(self) -> bool:
        """Only when batches are separate: prompts first, but never twice in a row while others decode."""
        if self.limits.batching is Batching.MIXED or not any(self._prompts()):
            return False
        return not (self._prompts_were_last and any(self._decodes()))

    def _admit_adopted(self) -> None:
        """They have their pages and take one token of a step: no prompt is a reason for them to wait."""
        while self.adopted and self._slots:
            self._start(self.adopted.popleft())

    def _admit_waiting(self, step: StepPlan) -> None:
        """Move requests from waiting to running while slots and pages last, if they get a part of this step.

        Who would get none, since prompts before it in order fill the step, takes no pages yet.
        """
        self._short_of_pages = False
        if not self.waiting or not self._slots:
            return
        room = self._prompt_budget(sum(1 for _ in self._decodes()))
        reading = deque(sorted(self._prompts(), key=_turn))
        forecast = AdmissionForecast(self.kv, self._lengths, self.running)
        demand = 0
        for request in list(rank(self.waiting, self.limits.policy, self.kv.cache, self._rng)):
            while reading and reading[0].turn <= request.turn:
                demand += self._demand(reading.popleft())
            if not self._slots or demand >= room:
                return
            if request.awaits_token:
                continue  # preempted while its last token was on the way: it comes with this step's results
            started = request.num_cached is None
            if not self.kv.admit(request, headroom=partial(forecast.headroom, request)):
                self._short_of_pages = True
                return
            if started:
                step.started.append(request)
            self.waiting.remove(request)
            request.num_expected = 0
            self._start(request)
            forecast.admitted(request)
            if request.num_pending > 1:
                demand += self._demand(request)

    def _demand(self, prompt: Request) -> int:
        """Tokens of a step that a prompt would take."""
        return min(prompt.num_pending, self.limits.longest_chunk or prompt.num_pending)

    def _start(self, request: Request) -> None:
        request.slot = self._slots.pop()
        self.running.append(request)

    def _continue_decodes(self, step: StepPlan) -> list[Chunk]:
        """Every running request with one token to go; they are never starved."""
        decodes: list[Chunk] = []
        position = 0
        while position < len(self.running):
            request = self.running[position]
            if self._decodable(request):
                if self._make_room(request, step):
                    decodes.append(self._compute(request, 1))
                elif not request.pinned:
                    continue  # it had to go itself, and another has its place
            position += 1
        return decodes

    def _make_room(self, request: Request, step: StepPlan) -> bool:
        """A page for the next token, if need be from the last admitted, which has not been served yet.

        Pinned requests keep theirs: one that decodes waits until its handoff is over, if nobody behind it can
        make room.
        """
        while not self.kv.grow(request):
            victim = self._last_preemptible(request)
            if victim is None:
                return False
            self.preempt(victim)
            step.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _last_preemptible(self, request: Request) -> Request | None:
        """Of `request` and those behind it, which have no token in this step yet."""
        for other in reversed(self.running):
            if not other.pinned:
                return other
            if other is request:
                return None
        return None

    def _continue_prompts(self, reading: list[Request], num_decodes: int) -> list[Chunk]:
        prompts: list[Request] = []
        planned = PrefixesInFlight(self.kv.page_size)
        for request in reading:
            # Two requests about to compute the same page: the second waits a step and finds it in the cache.
            if self.kv.cache is not None:
                start = request.num_computed
                if self._in_flight.shared(request, start) or planned.shared(request, start):
                    continue
                planned.add(request, start)
            prompts.append(request)
        lengths = self._lengths_of([Progress(r.num_computed, r.num_pending) for r in prompts], num_decodes)
        return [self._compute(r, length) for r, length in zip(prompts, lengths, strict=True) if length]

    def _lengths_of(self, prompts: list[Progress], num_decodes: int) -> list[int]:
        """How many tokens of each prompt to compute beside so many decodes."""
        room = allowed = self._prompt_budget(num_decodes)
        if self.limits.budget is None:
            return whole_prompts(prompts, room)
        lengths = self._share(prompts, room)
        if self.itl_controller is None or not num_decodes or not any(lengths):
            return lengths
        cost = sum(self._cost.of(p.computed, length) for p, length in zip(prompts, lengths, strict=True))
        if cost > self.itl_controller.budget:
            room = int(sum(lengths) * self.itl_controller.budget / cost)
        if sum(p.pending for p in prompts) > room:
            tokens = whole_tiles(num_decodes + room, self.limits.token_tile)
            room = max(min(tokens, self.limits.budget) - num_decodes, self.kv.page_size)
        if room != allowed:
            lengths = self._share(prompts, room)
        return unfilled(prompts, lengths, room)

    def _share(self, prompts: list[Progress], room: int) -> list[int]:
        return split_budget(prompts, room, self.kv.page_size, self.limits.longest_chunk)

    def _compute(self, request: Request, length: int) -> Chunk:
        """Plan the next `length` tokens of a request, and advance it as if they were computed."""
        start = request.num_computed
        if length > 1 and self.kv.cache is not None:
            self._in_flight.add(request, start)
        request.num_computed += length
        output_index = None
        if request.num_pending == 0:
            output_index = len(request.output)
            request.output.append(PENDING)
        return Chunk(request, request.slot, start, length, output_index)

    @property
    def has_prompts(self) -> bool:
        """Whether the next step would have any: new ones, or what is left of others."""
        return self._is_reading or any(r.num_pending > 1 for r in self.waiting)

    def _prompts(self) -> Iterator[Request]:
        return (r for r in self.running if r.num_pending > 1 and not r.paused)

    def _decodes(self) -> Iterator[Request]:
        return (r for r in self.running if self._decodable(r))

    def _decodable(self, request: Request) -> bool:
        """One token to go, and the answer not yet complete whatever the token in flight turns out to be."""
        num_tokens = request.num_tokens
        return (
            num_tokens - request.num_computed == 1
            and not request.paused
            and len(request.output) < request.sampling.max_tokens
            and num_tokens < self.limits.max_tokens
        )

    def _prompt_budget(self, num_decodes: int) -> int:
        """What decodes leave of a step, but at least one page: prompts are not starved either."""
        if self.limits.budget is None:
            return self.limits.max_tokens
        budget = self.limits.budget - num_decodes
        if self.itl_controller is not None and num_decodes:
            budget = min(budget, self.itl_controller.budget)
        return max(budget, self.kv.page_size)
