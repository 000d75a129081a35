"""Requests driven through a runner step by step, with given answers, reading the distribution at each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from engine.config import EngineConfig
from engine.core.plan import Chunk, StepPlan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from engine.sampling.sampled import Sampled
from tests.engine_config import engine_config
from tests.gpu.models import VOCAB


def gpu_config(folder: Path, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "model_path": folder,
        "device": "cuda",
        "dtype": "bfloat16",
        "page_size": 16,
        "num_pages": 512,
        "max_model_len": 1024,
        "max_running_requests": 32,
        "attention_backend": "flashinfer",
    }
    return engine_config(**{**settings, **changes})


def random_tokens(count: int, seed: int) -> list[int]:
    return torch.randint(2, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@dataclass
class Forced:
    """A request whose answer is given: what the model predicts at each place is kept, and not followed."""

    tokens: list[int]
    prompt_length: int
    slot: int
    pages: Sequence[int]
    request: Request = field(init=False)
    predicted: dict[int, torch.Tensor] = field(default_factory=dict)
    """Position to log-probabilities [vocab] of the token after it."""
    logits: dict[int, torch.Tensor] = field(default_factory=dict)
    """The same as logits."""

    def __post_init__(self) -> None:
        sampling = SamplingParams(max_tokens=len(self.tokens))
        self.request = Request(id=self.slot, prompt=self.tokens[: self.prompt_length], sampling=sampling)
        self.request.slot = self.slot
        self.request.pages = list(self.pages)

    def chunk(self, length: int) -> Chunk:
        request = self.request
        start = request.num_computed
        request.num_computed += length
        samples = request.num_computed == request.num_tokens
        return Chunk(request, request.slot, start, length, len(request.output) if samples else None)


def step(runner: ModelRunner, *work: tuple[Forced, int]) -> None:
    """Compute the given number of next tokens of each, in one batch."""
    ordered = sorted(work, key=lambda item: item[1] == 1)
    chunks = [forced.chunk(length) for forced, length in ordered]
    with seen_logits(runner) as seen:
        result = runner.launch(runner.prepare(StepPlan(chunks=chunks))).result()
    assert not result.errors
    sampling = [forced for (forced, _), chunk in zip(ordered, chunks, strict=True) if chunk.samples]
    rows = torch.cat(seen) if sampling else torch.empty(0, VOCAB)
    for forced, row, logits in zip(sampling, rows.log_softmax(-1).cpu(), rows.cpu(), strict=True):
        position = forced.request.num_tokens - 1
        forced.predicted[position], forced.logits[position] = row, logits
        forced.request.output.append(forced.tokens[position + 1])


@contextmanager
def seen_logits(runner: ModelRunner) -> Iterator[list[torch.Tensor]]:
    """The logits [S, vocab] that reach the sampler, in float32: a request can ask for a few of them only."""
    seen: list[torch.Tensor] = []
    sampler = runner._sampler
    sample = sampler.sample

    def watched(logits: torch.Tensor, *rest: Any) -> Sampled:
        seen.append(logits[:, :VOCAB].float().clone())
        return sample(logits, *rest)

    with mock.patch.object(sampler, "sample", watched):
        yield seen


def generate(
    config: EngineConfig, prompts: Sequence[Sequence[int]], sampling: SamplingParams
) -> list[list[int]]:
    """Answers of an engine, all prompts at once."""
    engine = Engine(config)
    requests = [Request(id=i, prompt=list(prompt), sampling=sampling) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        output = engine.step()
        assert not output.failed
    engine.check_pages()
    engine.close()
    return [list(request.output) for request in requests]
