"""Drives a scheduler without an engine: plans as lists of chunk lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.core.sampling_params import FinishReason, SamplingParams
from engine.kv.manager.kv_manager import KVManager
from engine.sched.presets import PRESETS, Preset
from engine.sched.scheduler import Scheduler


def request(
    id: int, tokens: int, max_tokens: int = 1, *, prefix: Sequence[int] = (), **fields: Any
) -> Request:
    """A prompt of `tokens` tokens that shares only its prefix with others."""
    prompt = [*prefix, *[1000 + id] * (tokens - len(prefix))]
    return Request(id, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), **fields)


class Planner:
    """A scheduler with a preset's settings, and what it planned."""

    def __init__(
        self,
        preset: Preset,
        *,
        context: int = 1 << 20,
        num_pages: int = 0,
        page_size: int | None = None,
        radix_cache: bool = False,
        **changes: Any,
    ) -> None:
        settings = PRESETS[preset]
        self.page_size = settings.page_size if page_size is None else page_size
        num_pages = num_pages or context // self.page_size
        self.kv = KVManager(num_pages, self.page_size, radix_cache=radix_cache)
        self.config = replace(settings.scheduler, **changes)
        self.scheduler = Scheduler(self.config, self.kv, context=context)
        self.ended: list[int] = []

    def submit(self, *requests: Request) -> None:
        for each in requests:
            self.scheduler.submit(each)

    def step(self) -> StepPlan:
        """Plan a step and complete it; requests that have all their tokens leave."""
        plan = self.scheduler.plan()
        for chunk in plan.chunks:
            self.scheduler.complete(chunk)
            owner = chunk.request
            if chunk.output_index is None:
                continue
            owner.output[chunk.output_index] = 5
            if len(owner.output) == owner.sampling.max_tokens or owner.num_tokens >= self.scheduler.context:
                self.scheduler.remove(owner, FinishReason.LENGTH)
                self.kv.release(owner)
                self.ended.append(owner.id)
        return plan

    def chunks(self, *ids: int) -> list[list[int]]:
        """Lengths of the chunks of these requests, step by step, until all have ended."""
        steps = []
        while not set(ids) <= set(self.ended):
            plan = self.step()
            assert plan.chunks, "the scheduler stands still"
            lengths = [[c.length for c in plan.chunks if c.request.id == id] for id in ids]
            steps.append([sum(each) for each in lengths])
        return steps

    def chunks_of(self, id: int) -> list[int]:
        return [length for (length,) in self.chunks(id)]

    def decoding(self, count: int, max_tokens: int = 100_000) -> None:
        """Start this number of decoding requests, with ids from 100 on."""
        self.submit(*(request(100 + i, 2, max_tokens) for i in range(count)))
        while sum(bool(r.output) for r in self.scheduler.running) < count:
            self.step()
