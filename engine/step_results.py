"""What the result of a step does to its requests: tokens are delivered, drafts verified, requests ended."""

from __future__ import annotations

import math

from engine.core.events import StepOutput, TokenOut, Verified
from engine.core.plan import Chunk, ChunkKind, StepPlan
from engine.core.request import PENDING, Request
from engine.core.sampling_params import FinishReason, PromptLogprobs, TokenLogprobs
from engine.errors import NotFinite
from engine.executor.base import StepResult
from engine.model_config.served_model import ServedModel
from engine.requests import Requests
from engine.sched.scheduler import Scheduler
from engine.step_clock import StepClock

__all__ = ["StepResults"]


class StepResults:
    def __init__(
        self,
        requests: Requests,
        scheduler: Scheduler,
        times: StepClock,
        model: ServedModel,
        *,
        max_tokens: int,
    ) -> None:
        """`max_tokens`: prompt and output tokens of a request at most."""
        self.num_steps = self.num_prompt_tokens = self.num_generated_tokens = 0
        self._requests = requests
        self._scheduler = scheduler
        self._times = times
        self._eos_token_ids = model.eos_token_ids
        self._max_tokens = max_tokens

    def complete(self, plan: StepPlan, result: StepResult, output: StepOutput) -> None:
        """A step has run: report to `output` what it brought."""
        since = self._times.completed(plan)
        self.num_steps += 1
        output.completed = True
        row, scores, accepted = 0, iter(result.scores), 0
        for chunk in plan.chunks:
            request, sampled = chunk.request, row
            row += chunk.samples + len(chunk.draft)
            if chunk.num_scored:
                self._score(request, next(scores), output)
            if chunk.kind is ChunkKind.PREFILL:
                self.num_prompt_tokens += chunk.length
            if chunk.samples and sampled in result.errors:
                self._requests.fail(request, result.errors[sampled], output)
            self._scheduler.complete(chunk)
            if request.finish is not None:
                continue
            if chunk.kind is ChunkKind.VERIFY:
                accepted += self._verify(chunk, result, sampled, output)
                continue
            self._requests.hooks.on_computed(request, chunk.end)
            if chunk.samples:
                self._deliver(chunk, result.tokens[sampled], result.logprobs[sampled], output)
        if self._scheduler.speculator is not None and not plan.prompt_tokens and since < math.inf:
            self._scheduler.speculator.observe(len(plan.chunks), plan.num_drafted, accepted, since)

    def _verify(self, chunk: Chunk, result: StepResult, first: int, output: StepOutput) -> int:
        """Deliver the tokens of a verify chunk; `first` is its first row. Returns how many drafts are right.

        A row samples what a decode would sample there if all tokens before it are right. So the first token
        that differs from the draft is delivered, and nothing behind it.
        """
        request = chunk.request
        accepted = result.accepted(chunk.draft, first)
        predicted = self._scheduler.verified(chunk, accepted)
        output.verified.append(Verified(request, len(chunk.draft), accepted, predicted))
        self._requests.hooks.on_computed(request, request.num_computed)
        for row, place in enumerate(chunk.rows()[: accepted + 1], first):
            if row in result.errors:
                self._requests.fail(request, result.errors[row], output)
                break
            request.output.append(PENDING)
            self._deliver(place, result.tokens[row], result.logprobs[row], output)
            if request.finish is not None:
                break
        return accepted

    def _score(self, request: Request, scores: PromptLogprobs | None, output: StepOutput) -> None:
        """Report the log-probabilities of a chunk, without those that were reported before a preemption."""
        if scores is None:
            self._requests.fail(request, NotFinite(), output)
            return
        known, computed = request.num_scored + 1 - scores.position, len(scores.logprobs)
        if request.finish is None and known < computed:
            output.scored.append((request, scores.part(known, computed)))
            request.num_scored += computed - known

    def _deliver(self, chunk: Chunk, token: int, logprobs: TokenLogprobs | None, output: StepOutput) -> None:
        request = chunk.request
        assert chunk.output_index is not None
        request.output[chunk.output_index] = token
        self.num_generated_tokens += 1
        length = chunk.output_index + 1
        is_stop = self._stops(request, token, length)
        finish: FinishReason | None = None
        if is_stop:
            finish = FinishReason.STOP
        elif length >= request.sampling.max_tokens or len(request.prompt) + length >= self._max_tokens:
            finish = FinishReason.LENGTH
        output.tokens.append(TokenOut(request, token, chunk.output_index, logprobs, finish, is_stop))
        if finish is not None:
            self._requests.end(request, finish)

    def _stops(self, request: Request, token: int, length: int) -> bool:
        sampling = request.sampling
        if length < sampling.min_tokens:
            return False
        if token in sampling.stop_token_ids:
            return True
        return not sampling.ignore_eos and token in self._eos_token_ids
