"""Plans the prompts of a step: which ones get tokens, and how many."""

from __future__ import annotations

from engine.config import SchedulerConfig
from engine.core.plan import Chunk, ChunkKind, StepPlan
from engine.core.request import PENDING, Request
from engine.kv.manager.kv_manager import KVManager
from engine.sched.admission.admission import Admission
from engine.sched.chunk_size.chunk_sizer import ChunkSizer
from engine.sched.chunk_size.token_budget import Progress
from engine.sched.chunk_size.whole_images import with_whole_images
from engine.sched.prefixes_in_flight import PrefixesInFlight
from engine.sched.queue.queues import Queues


class Prompts:
    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        queues: Queues,
        admission: Admission,
        chunks: ChunkSizer,
        *,
        whole_images: bool,
    ) -> None:
        """`whole_images`: no chunk ends within an image."""
        self._whole_images = whole_images
        self.in_flight = PrefixesInFlight(kv.page_size, kv.locks.of)
        """Chunks of steps that have not completed; empty unless prefixes are shared."""
        self._kv = kv
        self._queues = queues
        self._admission = admission
        self._chunks = chunks
        self._saves_states = kv.cache.enabled and kv.states.used
        # Another request's pages are of no use before its state is saved, at the end of its prompt.
        self._shares_prefixes = kv.cache.enabled and config.share_prefixes and not kv.states.used

    def admit(self, step: StepPlan, now: float, num_decodes: int) -> list[Request]:
        """Admit requests. Returns prompts of which the cache may hold all but the last token."""
        candidates = self._admission.admit(step, now, num_decodes)
        if not candidates and not self._queues.prefilling:
            return []
        if self._shares_prefixes:
            candidates += self._queues.prefilling
            for request in self._queues.prefilling:
                self._kv.catch_up(request)
        self._queues.drop_prefilled()
        unique = {request.scheduling.number: request for request in candidates}
        return [*unique.values()]

    def plan(self, num_decodes: int) -> list[Chunk]:
        """Size the next chunks of the prompts in progress, beside this many decodes."""
        if not self._queues.prefilling:
            return []
        prompts: list[Request] = []
        planned = PrefixesInFlight(self._kv.page_size, self._kv.locks.of)
        for request in self._admission.in_turn():
            if request.num_computed >= request.capacity or not request.num_ready:
                continue
            # If two requests would compute the same page, the second waits for a step and finds it in the
            # cache.
            if self._shares_prefixes:
                start = request.num_computed
                reuses = start < request.num_reusable
                if reuses and (self.in_flight.shared(request, start) or planned.shared(request, start)):
                    continue
                planned.add(request, start)
            prompts.append(request)
        progress = [Progress(r.num_computed, min(r.num_ready, r.capacity - r.num_computed)) for r in prompts]
        lengths = self._chunks.lengths(progress, num_decodes)
        if self._whole_images:
            lengths = with_whole_images(prompts, lengths, self._chunks.largest - num_decodes)
        if self._saves_states:
            cut = self._kv.states.until_checkpoint
            lengths = [cut(request, length) for request, length in zip(prompts, lengths, strict=True)]
        chunks = [self._chunk(r, length) for r, length in zip(prompts, lengths, strict=True) if length]
        self._queues.drop_prefilled()
        return chunks

    def _chunk(self, request: Request, length: int) -> Chunk:
        """Plan the next `length` tokens of a prompt, and advance it as if they were computed."""
        start = request.num_computed
        kind = ChunkKind.PREFILL if length > 1 else ChunkKind.DECODE
        if kind is ChunkKind.PREFILL and self._shares_prefixes:
            self.in_flight.add(request, start)
        if self._saves_states:
            self._kv.states.plan_checkpoint(request, start, start + length)
        request.num_computed += length
        output_index = None
        if request.read is not None:
            scored = request.read.num_rows(length, ends=request.num_pending == 0)
            return Chunk(request, request.slot, start, length, None, scored, request.admissions, kind)
        if request.num_pending == 0:
            output_index = len(request.output)
            request.output.append(PENDING)
        scored = max(min(start + length, request.scores_until) - max(start, request.num_scored), 0)
        return Chunk(request, request.slot, start, length, output_index, scored, request.admissions, kind)
