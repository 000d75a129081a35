"""What the result of a step does to its requests: tokens are delivered, drafts verified, requests ended."""

from __future__ import annotations

import math

from common.sidecars import Rows
from engine.core.events import StepOutput, TokenOut, Verified
from engine.core.media import NO_MEDIA_USE, MediaUse
from engine.core.output import Output
from engine.core.plan import Chunk, ChunkKind, StepPlan
from engine.core.read import PageSums, Pooled
from engine.core.request import PENDING, Request
from engine.core.sampling_params import FinishReason, TokenLogprobs
from engine.errors import NotFinite
from engine.executor.base import StepResult
from engine.loop.requests import Requests
from engine.loop.step_clock import StepClock
from engine.model_config.served_model import ServableSpec
from engine.sched.scheduler import Scheduler


class StepResults:
    def __init__(
        self,
        requests: Requests,
        scheduler: Scheduler,
        times: StepClock,
        model: ServableSpec,
        *,
        max_tokens: int,
    ) -> None:
        """`max_tokens`: prompt and output tokens of a request at most."""
        self.num_steps = self.num_prompt_tokens = self.num_generated_tokens = 0
        self.media_queries = self.media_hits = self.media_encoded = 0
        """See `MediaUse`."""
        self._requests = requests
        self._scheduler = scheduler
        self._times = times
        self._eos_token_ids = model.eos_token_ids
        self._max_tokens = max_tokens

    def complete(self, plan: StepPlan, result: StepResult, output: StepOutput) -> int:
        """A step has run: report to `output` what it brought. Returns how many drafted tokens were right."""
        since = self._times.completed(plan)
        self.num_steps += 1
        self.num_prompt_tokens += plan.prompt_tokens
        output.completed = True
        row, scores, accepted, known = 0, iter(result.scores), 0, len(output.tokens)
        if result.routed is not None:
            self._report_experts(plan, result, result.routed, output)
        errors, on_computed, verify = result.errors, self._requests.hooks.on_computed, ChunkKind.VERIFY
        refused = result.refused
        if result.media is not NO_MEDIA_USE:
            self._count_media(result.media, output)
        for chunk in plan.chunks:  # hundreds: no property or method is called that need not be
            request, place, sampled = chunk.request, chunk.output_index, row
            row += (place is not None) + len(chunk.draft)
            if refused and request.id in refused:
                self._requests.fail(request, refused[request.id], output)
            if chunk.num_scored:
                self._score(chunk, next(scores), output)
            if errors and place is not None and sampled in errors:
                self._requests.fail(request, errors[sampled], output)
            self._scheduler.complete(chunk)
            if request.finish is not None:
                continue
            if chunk.kind is verify:
                accepted += self._verify(chunk, result, sampled, output)
                continue
            on_computed(request, chunk.start + chunk.length)
            if place is None:
                if chunk.ends_request and chunk.is_current:
                    output.read.append(request)
                    self._requests.end(request, FinishReason.STOP)
            else:
                self._deliver(request, place, result.tokens[sampled], result.logprobs[sampled], output)
        self.num_generated_tokens += len(output.tokens) - known
        if (speculator := self._scheduler.speculator) is not None:
            if plan.prompt_tokens or since == math.inf:
                speculator.interrupted()
            else:
                speculator.observe(len(plan.chunks), plan.num_drafted, accepted, since)
        return accepted

    def _count_media(self, use: MediaUse, output: StepOutput) -> None:
        self.media_queries += use.queries
        self.media_hits += use.hits
        self.media_encoded += len(use.encoded)
        for request_id, encoding in use.encoded:
            if (request := self._requests.live.get(request_id)) is not None:
                output.encoded.append((request, encoding))

    def _report_experts(self, plan: StepPlan, result: StepResult, rows: Rows, output: StepOutput) -> None:
        """Keep the rows of all tokens that are right, and report those that requests want."""
        first, sampled = 0, 0
        for chunk in plan.chunks:
            count = chunk.length
            if chunk.kind is ChunkKind.VERIFY:
                count = 1 + result.accepted(chunk.draft, sampled)
            found = self._scheduler.kv.routed.computed(chunk, rows[first : first + count])
            if found is not None:
                output.outputs.append((chunk.request, found))
            first += chunk.length
            sampled += chunk.samples + len(chunk.draft)

    def _verify(self, chunk: Chunk, result: StepResult, first: int, output: StepOutput) -> int:
        """Deliver the tokens of a verify chunk; `first` is its first row. Returns how many drafts are right.

        A row samples what a decode would sample there if all tokens before it are right. So the first token
        that differs from the draft is delivered, and nothing behind it.
        """
        request, tokens, errors = chunk.request, result.tokens, result.errors
        accepted = result.accepted(chunk.draft, first)
        predicted = self._scheduler.verified(chunk, accepted)
        output.verified.append(Verified(request, len(chunk.draft), accepted, predicted))
        self._requests.hooks.on_computed(request, request.num_computed)
        for row in range(first, first + accepted + 1):
            if errors and row in errors:
                self._requests.fail(request, errors[row], output)
                break
            request.output.append(PENDING)
            place = len(request.output) - 1
            self._deliver(request, place, tokens[row], result.logprobs[row], output)
            if request.finish is not None:
                break
        return accepted

    def _score(self, chunk: Chunk, scores: Output | None, output: StepOutput) -> None:
        """Report what a chunk has for its rows, without those that are known already."""
        request = chunk.request
        if scores is None:
            self._requests.fail(request, NotFinite(), output)
            return
        if request.read is not None:
            found: Output | None = scores
            if isinstance(scores, (Pooled, PageSums)):
                found = self._scheduler.kv.scores.sums.computed(chunk, scores)
            if found is not None and request.finish is None and chunk.is_current:
                output.outputs.append((request, found))
            return
        scores = self._scheduler.kv.scores.computed(request, scores)
        known, computed = request.num_scored + 1 - scores.position, len(scores)
        if request.finish is None and known < computed:
            output.outputs.append((request, scores.part(known, computed)))
            request.num_scored += computed - known

    def _deliver(
        self, request: Request, place: int, token: int, logprobs: TokenLogprobs | None, output: StepOutput
    ) -> None:
        """`place`: of the token in the request's output."""
        request.output[place] = token
        length, sampling = place + 1, request.sampling
        finish: FinishReason | None = None
        is_stop = length >= sampling.min_tokens and (
            token in sampling.stop_token_ids or (not sampling.ignore_eos and token in self._eos_token_ids)
        )
        if is_stop:
            finish = FinishReason.STOP
        elif length >= sampling.max_tokens or len(request.prompt) + length >= self._max_tokens:
            finish = FinishReason.LENGTH
        output.tokens.append(TokenOut(request, token, place, logprobs, finish, is_stop))
        if finish is not None:
            self._requests.end(request, finish)
