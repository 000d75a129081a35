"""Plans the decodes of a step: pages for the next token of every running request, and drafts after it."""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import Batching, SchedulerConfig
from engine.core.plan import Chunk, ChunkKind, StepPlan, chunk_of
from engine.core.request import PENDING, Request
from engine.core.waits import WaitReason
from engine.kv.manager.kv_manager import KVManager
from engine.sched.admission.page_forecast import Forecaster
from engine.sched.chunk_size.whole_images import least_end
from engine.sched.drafts.speculator import Speculator
from engine.sched.queue.queues import Queues


class RunningDecodes:
    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        queues: Queues,
        forecaster: Forecaster,
        context: int,
        *,
        whole_images: bool,
    ) -> None:
        """`context`: most prompt and output tokens of a request. `whole_images`: see `Prompts`."""
        self._next_end = least_end if whole_images else _next_token
        self._kv = kv
        self._queues = queues
        self._forecaster = forecaster
        self._context = context
        self._least_output = 0 if config.batching is Batching.MIXED else 1
        """Output tokens that a decode has at least: with separate batches, the last prompt token is
        prefill."""

    def make_room(self, step: StepPlan) -> list[Request]:
        """Requests that decode, each with pages for its next token; preempts others if pages run out.

        Pinned requests keep their pages: if all are pinned, a decode waits until a handoff ends. It also
        waits for pages that are being copied to a tier.
        """
        decodes = self.decodable(self._queues.running)
        waits = False
        lacking = [request for request in decodes if request.num_computed >= request.capacity]
        if self._kv.needs.windowed:
            # A page that a prompt left behind may be in another request's window, and the pool empty.
            lacking += [r for r in self._queues.prefilling if self._next_end(r) > r.capacity]
        for request in lacking:
            while request.slot >= 0 and not self._kv.grow(request, self._next_end(request)):
                victims = self._queues.victims([r for r in self._queues.running if not r.pinned])
                if not victims or self._kv.num_returning:
                    waits = True
                    break
                self._queues.preempt(victims[0], WaitReason.PAGES, step)
                self._forecaster.retracted(self._queues.running)
        if step.preempted or waits:
            return [r for r in decodes if r.slot >= 0 and r.num_computed < r.capacity]
        if decodes:
            self._forecaster.decoded()
        return decodes

    def decodable(self, requests: Iterable[Request]) -> list[Request]:
        """Requests with one token to compute that do not end with the token in flight, whichever it is."""
        least, context = self._least_output, self._context
        found = []
        for request in requests:
            produced = len(request.output)
            num_tokens = len(request.prompt) + produced
            if (
                num_tokens - request.num_computed == 1
                and not request.paused
                and least <= produced < request.sampling.max_tokens
                and num_tokens < context
                and not (request.awaits and not request.num_ready)
            ):
                found.append(request)
        return found

    def plan(self, ready: list[Request]) -> list[Chunk]:
        """Plan every running request with one token to compute; decodes are never starved."""
        chunks, kind = [], ChunkKind.DECODE
        for request in ready:
            if request.slot < 0:
                continue  # preempted for a more urgent one
            start, output = request.num_computed, request.output
            chunks.append(
                chunk_of((request, request.slot, start, 1, len(output), 0, request.admissions, kind, ()))
            )
            request.num_computed = start + 1
            output.append(PENDING)
        return chunks

    def add_drafts(self, decodes: list[Chunk], speculator: Speculator, room: int, *, alone: bool) -> int:
        """Turn decodes into verify chunks, with at most `room` drafted tokens; returns how many these are.
        `alone`: the step has no prompts.

        Drafts never preempt a request, and never take the last pages: each decode may need one soon.
        """
        spare, total, verify = len(self._queues.running), 0, ChunkKind.VERIFY
        for index, draft in enumerate(speculator.draft(decodes, room, alone=alone)):
            if not draft:
                continue
            request, slot, start, _, place, scored, admission, _, _ = decodes[index]
            count, wanted = request.capacity - request.num_computed, len(draft)
            if count < wanted:
                count = self._kv.room_for(request, wanted, spare=spare)
            count = min(count, wanted)
            if count:
                request.num_computed += count
                request.output += [PENDING] * count
                tokens = tuple(draft[:count])
                decodes[index] = chunk_of(
                    (request, slot, start, 1 + count, place, scored, admission, verify, tokens)
                )
                total += count
        return total


def _next_token(request: Request) -> int:
    return request.num_computed + 1
