"""Which tokens the next step computes. Plain Python: no tensors, no sockets, no clock."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from engine.config import Batching, Policy
from engine.core.kv_manager import KVManager
from engine.core.plan import Chunk, StepPlan
from engine.core.request import PENDING, Request
from engine.core.sampling_params import FinishReason
from engine.errors import InvalidRequest, QueueFull
from engine.sched.headroom import Outlook
from engine.sched.itl_controller import ChunkPacer, PromptCost, whole_tiles
from engine.sched.page_forecast import OutputLengths
from engine.sched.policy import rank
from engine.sched.prefixes_in_flight import Beginnings
from engine.sched.token_budget import Progress, share_budget, unfilled, whole_prompts

__all__ = ["Limits", "Scheduler"]

MIN_SHARING: Final = 8
"""So many prompts may be in progress at once even if the first alone would fill every step."""


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
    policy: Policy = Policy.FCFS


class Scheduler:
    """Keeps the waiting and the running requests and plans one step at a time.

    There are no phases: a prompt, a decode, a resumed request and one whose KV came from another worker
    differ only in how many tokens they have to catch up with.
    """

    def __init__(self, limits: Limits, kv: KVManager, *, seed: int = 0) -> None:
        self.limits = limits
        self.kv = kv
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        """In order of admission. The last that is not pinned is the first to be preempted."""
        self.num_preemptions = 0
        self._is_starved = False
        self.pacer = (
            None
            if limits.itl_target_s is None or limits.budget is None
            else ChunkPacer(limits.itl_target_s, limits.budget)
        )
        self._cost = PromptCost(limits.costly_context)
        self._slots = list(range(limits.max_running - 1, -1, -1))
        self._rng = random.Random(seed)
        self._lengths = OutputLengths()
        self._in_flight = Beginnings(kv.page_size)
        """Chunks of steps that have not completed; empty without a prefix cache."""
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
        self.waiting.append(request)

    def adopt(self, request: Request) -> None:
        """A request whose KV is here already: it goes first as soon as a slot is free."""
        self.waiting.appendleft(request)

    def plan(self) -> StepPlan:
        step = StepPlan()
        self._admit_waiting(step)
        # First, for a prompt that is found in the cache up to its last token decodes in this very step: left
        # for the next, this step might be empty, after which the engine's caller sleeps.
        for request in self._prompts():
            self.kv.catch_up(request)
        decodes: list[Chunk] = []
        prompts: list[Chunk] = []
        if not self._prompts_have_their_turn():
            decodes = self._continue_decodes(step)
        reading = list(self._prompts())
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
            self.waiting.remove(request)

    def preempt(self, request: Request) -> None:
        """Give its pages back and let it start over, later; what the cache keeps of it, it finds again."""
        assert not request.pinned, "a peer may be reading its pages"
        self.num_preemptions += 1
        self._is_starved = True
        self.kv.release(request)
        self._vacate(request)
        self.waiting.appendleft(request)

    def _vacate(self, request: Request) -> None:
        self.running.remove(request)
        self._slots.append(request.slot)
        request.slot = -1

    def _prompts_have_their_turn(self) -> bool:
        """Only when batches are separate: prompts first, but never twice in a row while others decode."""
        if self.limits.batching is Batching.MIXED or not any(self._prompts()):
            return False
        return not (self._prompts_were_last and any(self._decodes()))

    def _admit_waiting(self, step: StepPlan) -> None:
        """Move requests from waiting to running while slots and pages last and the step is not full."""
        self._is_starved = not self._slots
        if not self.waiting or not self._slots:
            return
        demand = sum(r.num_pending for r in self._prompts())
        sharing = sum(1 for _ in self._prompts())
        room = self._prompt_budget(sum(1 for _ in self._decodes()))
        outlook = Outlook(self.kv, self._lengths, self.running)
        for request in list(rank(self.waiting, self.limits.policy, self.kv.cache, self._rng)):
            if not self._slots:
                self._is_starved = True
                return
            if demand >= room and sharing >= MIN_SHARING:
                return
            if request.awaits_token:
                self._is_starved = True
                continue  # preempted while its last token was on the way: it comes with this step's results
            if not request.pages:
                started = request.num_cached is None
                if not self.kv.admit(request, headroom=partial(outlook.headroom, request)):
                    self._is_starved = True
                    return
                if started:
                    step.started.append(request)
            self.waiting.remove(request)
            request.slot = self._slots.pop()
            self.running.append(request)
            outlook.admitted(request)
            if request.num_pending > 1:
                demand += request.num_pending
                sharing += 1

    def _continue_decodes(self, step: StepPlan) -> list[Chunk]:
        """Every running request with one token to go; they are never starved."""
        decodes: list[Chunk] = []
        position = 0
        while position < len(self.running):
            request = self.running[position]
            if self._decodable(request):
                if not self._make_room(request, step):
                    break  # it had to go itself, and was the last that decodes
                decodes.append(self._compute(request, 1))
            position += 1
        return decodes

    def _make_room(self, request: Request, step: StepPlan) -> bool:
        """A page for the next token, if need be from the last admitted, which has not been served yet.

        Pinned requests keep theirs. They do not decode, so `request` itself can always be the victim.
        """
        while not self.kv.grow(request):
            victim = next(r for r in reversed(self.running) if not r.pinned)
            self.preempt(victim)
            step.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _continue_prompts(self, reading: list[Request], num_decodes: int) -> list[Chunk]:
        prompts: list[Request] = []
        planned = Beginnings(self.kv.page_size)
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
        if self.pacer is None or not num_decodes or not any(lengths):
            return lengths
        cost = sum(self._cost.of(p.computed, length) for p, length in zip(prompts, lengths, strict=True))
        if cost > self.pacer.budget:
            room = int(sum(lengths) * self.pacer.budget / cost)
        if sum(p.pending for p in prompts) > room:
            tokens = whole_tiles(num_decodes + room, self.limits.token_tile)
            room = max(min(tokens, self.limits.budget) - num_decodes, self.kv.page_size)
        if room != allowed:
            lengths = self._share(prompts, room)
        return unfilled(prompts, lengths, room, self.kv.page_size)

    def _share(self, prompts: list[Progress], room: int) -> list[int]:
        return share_budget(prompts, room, self.kv.page_size, self.limits.longest_chunk)

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
    def is_starved(self) -> bool:
        """Whether requests wait for pages or for a slot, and not only for room in a step."""
        return self._is_starved and bool(self.waiting)

    @property
    def has_prompts(self) -> bool:
        """Whether the next step would have any: new ones, or what is left of others."""
        return self._is_reading or any(r.num_pending > 1 for r in self.waiting)

    def _prompts(self) -> Iterator[Request]:
        return (r for r in self.running if r.num_pending > 1)

    def _decodes(self) -> Iterator[Request]:
        return (r for r in self.running if self._decodable(r))

    def _decodable(self, request: Request) -> bool:
        """One token to go, and the answer not yet complete whatever the token in flight turns out to be."""
        num_tokens = request.num_tokens
        return (
            num_tokens - request.num_computed == 1
            and len(request.output) < request.sampling.max_tokens
            and num_tokens < self.limits.max_tokens
        )

    def _prompt_budget(self, num_decodes: int) -> int:
        """What decodes leave of a step, but at least one page: prompts are not starved either."""
        if self.limits.budget is None:
            return self.limits.max_tokens
        budget = self.limits.budget - num_decodes
        if self.pacer is not None and num_decodes:
            budget = min(budget, self.pacer.budget)
        return max(budget, self.kv.page_size)
