"""Decides which tokens the next step computes. Plain Python: no tensors, no sockets, no clock."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from typing import Final

from engine.config import Batching, Policy, SchedulerConfig
from engine.core.draft_source import DraftSource
from engine.core.plan import Chunk, ChunkKind, StepPlan
from engine.core.request import Request
from engine.core.sampling_params import FinishReason
from engine.core.waits import WaitReason
from engine.errors import QueueFull, UnservableRequest
from engine.kv.manager.kv_manager import KVManager
from engine.sched.admission.admission import Admission
from engine.sched.admission.page_forecast import Forecaster
from engine.sched.chunk_size.chunk_sizer import ChunkSizer
from engine.sched.chunk_size.itl_controller import ITLController
from engine.sched.decodes import RunningDecodes
from engine.sched.drafts.speculator import Speculator
from engine.sched.output_lengths import OutputLengths
from engine.sched.prompts import Prompts
from engine.sched.queue.adapter_slots import AdapterSlots
from engine.sched.queue.policy import PolicyRules, rules_for
from engine.sched.queue.prefix_ranker import PrefixRanker
from engine.sched.queue.queues import Queues
from engine.sched.queue.waiting_queue import WaitingQueue
from engine.speculation.counts import DraftCounts

_STORED_TOKENS: Final = 64
"""With tiers, an answer's KV is cached whenever a step reaches or passes a multiple of this. Otherwise it is
cached at the end alone, and may be evicted before it is copied."""


class Scheduler:
    """Keeps waiting and running requests, and plans one step at a time.

    There are no phases: prompts, decodes, resumed requests and requests whose KV came from another worker
    differ only in the number of tokens that are still to be computed.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        *,
        context: int,
        vocab_size: int = sys.maxsize,
        seed: int = 0,
        max_rows: int | None = None,
        max_edited_drafts: int | None = None,
        drafts: DraftSource | None = None,
        max_loras: int = 0,
        whole_images: bool = False,
    ) -> None:
        """`context`: largest number of prompt and output tokens of a request. `vocab_size`, `max_rows`,
        `max_edited_drafts` and `drafts`: see `Speculator`. `max_loras`: adapters that a step can have.
        `whole_images`: no chunk ends within an image."""
        self.config = config
        self.kv = kv
        self.context = context
        self._rules = rules_for(config, seed)
        self._queues = Queues(config, kv, self._rules, _waiting_queue(config, kv, self._rules), max_loras)
        self._lengths = OutputLengths()
        self._chunks = ChunkSizer(config, kv.page_size, context, self._lengths)
        self._forecaster = Forecaster(config, kv, self._lengths)
        self._admission = Admission(config, kv, self._queues, self._rules, self._chunks, self._forecaster)
        self._decodes = RunningDecodes(
            config, kv, self._queues, self._forecaster, context, whole_images=whole_images
        )
        self._prompts = Prompts(
            config, kv, self._queues, self._admission, self._chunks, whole_images=whole_images
        )
        self._submitted = 0
        """Prompt tokens submitted so far, less those that were cached at that time."""
        self._prompts_were_last = False
        self._promoted_at = (0, 0)
        """Requests registered, and the tiers' version, at the last look ahead."""
        self.speculator: Speculator | None = None
        if config.speculation is not None:
            self.speculator = Speculator(
                config.speculation,
                context=context,
                vocab_size=vocab_size,
                max_rows=max_rows,
                max_edited_drafts=max_edited_drafts,
                step_target_s=config.itl_target_s,
                model=drafts,
            )

    @property
    def waiting(self) -> WaitingQueue:
        return self._queues.waiting

    @property
    def running(self) -> Sequence[Request]:
        """In order of admission."""
        return self._queues.running

    @property
    def waiting_for_slot(self) -> deque[Request]:
        """Requests that arrived with their KV and wait for a slot. In order of arrival."""
        return self._queues.waiting_for_slot

    @property
    def adapters(self) -> AdapterSlots:
        return self._queues.adapters

    @property
    def num_active(self) -> int:
        """Requests with a slot, and those that arrived with their KV and get the next ones."""
        return len(self._queues.running) + len(self._queues.waiting_for_slot)

    @property
    def itl_controller(self) -> ITLController | None:
        return self._chunks.itl_controller

    @property
    def prompt_budget(self) -> int | None:
        """Largest cost of the prompt tokens of a step that may have some beside decodes; None: no target for
        the time of steps."""
        return self._chunks.usual_budget

    @property
    def num_preemptions(self) -> int:
        return self._queues.num_preemptions

    @property
    def draft_counts(self) -> DraftCounts:
        return DraftCounts() if self.speculator is None else self.speculator.counts

    @property
    def num_waiting(self) -> int:
        return self._queues.num_waiting

    @property
    def waits_for(self) -> WaitReason | None:
        """Why the head of the queue waits; None if the queue is empty."""
        return self._queues.waits.reason

    @property
    def wants_pages(self) -> bool:
        """Whether a request waits for pages: there were none, or it was preempted for them. Pages in
        quarantine may never be free: requests that need those do not count."""
        shut_out = sum(request.num_cached is not None for request in self._admission.shut_out)
        return len(self.waiting) > 0 and (
            self._admission.lacks_pages or self.waiting.num_preempted > shut_out
        )

    @property
    def is_crowded(self) -> bool:
        """Whether even the shortest new request would wait for a slot or for pages."""
        return self.num_waiting > 0 and (not self._queues.has_slot or self.wants_pages)

    @property
    def has_prompts(self) -> bool:
        """Whether the next step would compute prompts, new or in progress."""
        return bool(self._queues.prefilling) or any(r.num_pending > 1 for r in self.waiting)

    @property
    def promotions_until(self) -> float:
        """When the first waiting request gives up waiting for KV on a tier; math.inf: none waits for that."""
        return math.inf if self.kv.tiers is None else self.kv.tiers.held_until(self.waiting)

    def submit(self, request: Request, now: float = 0.0, prefill_rate: float = math.inf) -> None:
        """Queue a request. `prefill_rate`: prompt tokens a second, as measured.

        Raises InvalidRequest for a request that can never run, QueueFull if too many wait,
        DeadlineUnreachable if requests ahead of it take until its deadline. Costs O(waiting) for a request
        with a deadline.
        """
        if request.num_tokens + (request.read is None) > self.context:
            raise UnservableRequest(
                f"{request.num_tokens} tokens leave no room for an answer: the context holds {self.context}"
            )
        if len(request.prompt) > self._chunks.largest_prompt:
            raise UnservableRequest(
                f"a prompt of {len(request.prompt)} tokens never fits into a step of"
                f" {self._chunks.largest_prompt:.0f}: chunked prefill is off; turn it on, or raise the budget"
            )
        if len(self.waiting) >= self.config.max_waiting_requests:
            raise QueueFull(f"{len(self.waiting)} requests wait already")
        request.scheduling.num_expected = self._admission.expected_tokens(request)
        request.scheduling.aging = self._submitted / self.config.prompt_patience
        if request.ttft_deadline_s < math.inf:
            self._admission.check_deadline(request, now, prefill_rate)
        self._submitted += request.num_pending - request.scheduling.num_expected
        self._queues.register(request, now)
        self.waiting.add(request)

    def add_remote(self, request: Request, now: float = 0.0) -> None:
        """Add a request that arrived with its KV.

        It decodes in the next step, or as soon as a slot is free. If only a part of its prompt is here, the
        rest takes its turn among the other prompts.
        """
        if request.num_pending > 1:
            request.scheduling.aging = self._submitted / self.config.prompt_patience
            self._submitted += request.num_pending
        self._queues.register(request, now)
        self.waiting_for_slot.append(request)

    def remove(self, request: Request, reason: FinishReason) -> None:
        """Remove a request from whichever queue it is in. Its pages stay allocated until `kv.release`."""
        request.finish = reason
        while request.awaits_token:
            request.output.pop()
        if reason is not FinishReason.ABORT and not request.pinned and request.read is None:
            # Of a pinned one, another worker continues the answer.
            self._lengths.ended(request)
        self._queues.remove(request)
        if self.speculator is not None:
            self.speculator.ended(request)

    def preempt(self, request: Request) -> None:
        """Free the request's pages and put it back in the queue."""
        self._queues.preempt(request, WaitReason.PAGES)

    def complete(self, chunk: Chunk) -> None:
        """A chunk's step has run: its KV is in the pool."""
        is_prompt = chunk.kind is ChunkKind.PREFILL
        if is_prompt and self._prompts.in_flight:
            self._prompts.in_flight.discard(chunk.request, chunk.start)
        request = chunk.request
        if request.slot < 0 or request.admissions != chunk.admission:
            return  # it was preempted or has ended meanwhile
        if request.state is not None:
            self.kv.states.computed(request, chunk.start)
        if is_prompt:
            self.kv.store(request, chunk.end)
            self.kv.tables.pass_by(request, chunk.end)
            return
        upto = chunk.start + 1  # the tokens after the first may be rejected drafts
        if self.kv.needs.windowed and not request.pinned:  # else a sender may read what it leaves behind
            self.kv.tables.pass_by(request, upto)
        elif self.kv.tiers is not None and not self.kv.states.used:
            node = self.kv.locks.of(request)
            cached = 0 if node is None else node.depth * self.kv.page_size
            if upto // _STORED_TOKENS > cached // _STORED_TOKENS:
                self.kv.store(request, upto)

    def verified(self, chunk: Chunk, accepted: int) -> bool:
        """A verify chunk's step has run: of its draft, this many tokens are right, and the others are not.

        The KV of wrong ones is overwritten. Their pages stay with the request. Returns whether the draft is
        from the client's prediction.
        """
        request = chunk.request
        request.num_computed = chunk.start + 1 + accepted
        del request.output[chunk.output_index :]
        return self.speculator is not None and self.speculator.verified(chunk, accepted)

    def observe(self, cost: float, seconds: float) -> None:
        """A step with decodes, and with prompt tokens of this cost or 0, completed `seconds` after the one
        before it."""
        if self._chunks.tpot_controller is not None:
            self._chunks.tpot_controller.observe(cost, seconds)
        elif self._chunks.itl_controller is not None:
            self._chunks.itl_controller.observe(cost, seconds)

    def promote_ahead(self, now: float) -> None:
        """Order copies of what tiers have for the first waiting requests, before a step is planned.

        O(their tokens) if a request has come, or a copy has ended, since the last call.
        """
        assert self.kv.tiers is not None
        seen = self._queues.num_registered, self.kv.tiers.tiers.version
        if seen != self._promoted_at:
            self._promoted_at = seen
            self._admission.promote_ahead(now)

    def plan(self, now: float = 0.0) -> StepPlan:
        """Plan the next step. `now` is when requests begin to wait, or to decode."""
        step = StepPlan()
        self._queues.start_remote()
        prompts: list[Chunk] = []
        decodes: list[Chunk] = []
        if self.config.batching is Batching.MIXED:
            ready = self._decodes.make_room(step)
            if self._chunks.tpot_controller is not None:
                prompts_possible = self._admission.is_open and self.has_prompts
                self._chunks.tpot_controller.plan(ready, now, prompts=prompts_possible)
            # Those of which the cache holds all but the last token decode in this step. Otherwise it might be
            # empty, and the engine's caller sleeps after an empty step.
            ready += self._decodes.decodable(self._prompts.admit(step, now, len(ready)))
            decodes = self._decodes.plan(ready)
            prompts = self._prompts.plan(len(decodes))
        else:
            if self.config.batching is Batching.ALTERNATING and self._prompts_were_last:
                decodes = self._decodes.plan(self._decodes.make_room(step))
            if not decodes:
                self._prompts.admit(step, now, 0)
                prompts = self._prompts.plan(0)
            if not decodes and not prompts:
                decodes = self._decodes.plan(self._decodes.make_room(step))
        self._prompts_were_last = bool(prompts)
        step.leaves_prompts = bool(prompts) and (
            bool(self._queues.prefilling) or self._admission.stopped_by is WaitReason.BUDGET
        )
        self._note_waits(step, now)
        # Attention runs chunks and decodes through different kernels; see Batch.
        prompts.sort(key=_is_single)
        if decodes and self.speculator is not None:
            room = self._chunks.largest - len(decodes) - sum(chunk.length for chunk in prompts)
            step.num_drafted = self._decodes.add_drafts(decodes, self.speculator, room, alone=not prompts)
        step.chunks = prompts + decodes
        if step.chunks:
            step.fillings = self._queues.adapters.take_fillings()
        if step.num_drafted:  # chunks with several tokens come first
            chunks = step.chunks
            step.chunks = [c for c in chunks if c.length > 1] + [c for c in chunks if c.length == 1]
        return step

    def _note_waits(self, step: StepPlan, now: float) -> None:
        reason, waiting = self._admission.stopped_by, self.waiting
        if not len(waiting):
            reason = None
        elif reason is not None and step.started:
            overtook = max(request.scheduling.number for request in step.started) > waiting.oldest
            reason = WaitReason.POLICY if overtook else reason
        self._queues.waits.planned(reason, now)


def _is_single(chunk: Chunk) -> bool:
    return chunk.kind is ChunkKind.DECODE


def _waiting_queue(config: SchedulerConfig, kv: KVManager, rules: PolicyRules) -> WaitingQueue:
    ranker = None
    if kv.cache.enabled and config.policy in (Policy.LPM, Policy.DFS_WEIGHT):
        ranker = PrefixRanker(kv.cache, depth_first=config.policy is Policy.DFS_WEIGHT)
    ages = config.policy is not Policy.SHORTEST  # whose admission key includes the age
    return WaitingQueue(
        rules.admission_key,
        aging_tokens=config.aging_tokens if ages else None,
        ranker=ranker,
        quantum=config.tenant_quantum,
    )
