"""Tokens a second of an engine that drafts, on a device that is a formula: virtual time, seeded noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.config import EngineConfig, SchedulerConfig, SpeculationConfig
from engine.core.draft_source import Wanted
from engine.core.plan import StepPlan
from engine.core.request import Request, RequestId, TokenId
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from engine.speculation.drafters import Drafter
from engine.speculation.kinds import DrafterKind
from router.placement import EVERYTHING, Reach
from simulator.runner import Clock, FormulaRunner
from tests.oracle import speculate

__all__ = ["Machine", "Model", "Sporadic", "a_cpu", "a_large_model", "an_h200", "tokens_a_second"]

ANSWER: TokenId = 5
"""All that a `FormulaRunner` samples."""
WRONG: TokenId = 6


@dataclass(frozen=True)
class Machine:
    """Seconds of a step, by its rows: decodes and drafted tokens."""

    points: tuple[tuple[int, float], ...]
    """Rows and seconds, interpolated between, and continued behind the last."""
    host: float
    """To plan and prepare a step; hidden behind the step before, unless that verifies drafts."""
    overlap: bool
    noise: float
    """Standard deviation of a step's time, relative to it."""
    draft_token: float
    """Time of a draft model's token, for all requests."""
    hiccups: float = 0.0
    """Share of steps that take twenty times as long, for no reason of their own."""
    rng: random.Random = field(default_factory=lambda: random.Random(3), compare=False)

    @property
    def reach(self) -> Reach:
        return EVERYTHING

    def device_s(self, plan: StepPlan) -> float:
        rows = plan.num_tokens
        at = next((k for k, (most, _) in enumerate(self.points) if most >= rows), len(self.points) - 1)
        (low, fast), (high, slow) = self.points[max(at, 1) - 1], self.points[max(at, 1)]
        seconds = max(self.points[0][1], fast + (slow - fast) * (rows - low) / (high - low))
        if self.rng.random() < self.hiccups:
            seconds *= 20
        return seconds * max(0.5, self.rng.gauss(1.0, self.noise))

    def host_s(self, plan: StepPlan) -> float:
        return self.host

    def launch_s(self, plan: StepPlan) -> float:
        return 0.0


def a_cpu() -> Machine:
    """SmolLM2-135M in float32 on two cores: a row costs nearly as much as a decode of 16 does."""
    return Machine(((1, 32e-3), (16, 133e-3)), 0.5e-3, overlap=False, noise=0.1, draft_token=8e-3)


def an_h200() -> Machine:
    """Llama-3.1-8B's shape in bfloat16: rows are cheap up to some 64, then bound by arithmetic."""
    points = ((1, 4.1e-3), (8, 4.3e-3), (64, 6.7e-3), (96, 7.5e-3), (160, 8.4e-3), (320, 12.0e-3))
    return Machine(points, 1.2e-3, overlap=True, noise=0.02, draft_token=1.8e-3)


def a_large_model() -> Machine:
    """Llama-3.3-70B's shape in FP8 on the same GPU."""
    machine = an_h200()
    return replace(machine, points=tuple((rows, 6.3 * seconds) for rows, seconds in machine.points))


@dataclass(frozen=True)
class Sporadic:
    """Has a draft of `shortest` to `longest` tokens now and then; each token is right with the probability
    given."""

    acceptance: float
    presence: float
    rng: random.Random
    shortest: int = 1
    longest: int = 16
    kind: DrafterKind = DrafterKind.NGRAM

    def draft(self, tokens: Sequence[TokenId], num_prompt: int, limit: int) -> list[TokenId]:
        if self.rng.random() >= self.presence:
            return []
        most = min(limit, self.rng.randint(self.shortest, self.longest))
        return [ANSWER if self.rng.random() < self.acceptance else WRONG for _ in range(most)]


@dataclass(frozen=True)
class Model:
    """A draft model, whose own steps take the device's time."""

    acceptance: float
    token_s: float
    clock: Clock
    rng: random.Random

    def draft(self, wanted: Sequence[Wanted]) -> list[list[TokenId]]:
        self.clock.time += self.token_s * max(want.limit for want in wanted)
        return [
            [ANSWER if self.rng.random() < self.acceptance else WRONG for _ in range(want.limit)]
            for want in wanted
        ]

    def ended(self, request: RequestId) -> None:
        pass

    def check_pages(self) -> None:
        pass

    def close(self) -> None:
        pass


def tokens_a_second(
    machine: Machine,
    batch: int,
    *,
    acceptance: float | None,
    presence: float = 1.0,
    shortest: int = 1,
    model: bool = False,
    steps: int = 400,
    answer: int = 200,
    seed: int = 1,
    config: SpeculationConfig | None = None,
    itl_target_s: float | None = None,
) -> float:
    """Rate of `batch` requests at a time, each of which is followed by another, over about `steps` steps
    without drafts, from a start without any knowledge. `acceptance` None: no drafts.
    """
    clock, rng = Clock(), random.Random(seed)
    engine = Engine(
        EngineConfig(
            model_path=Path("none"),
            num_pages=batch * 40,
            max_model_len=8192,
            scheduler=SchedulerConfig(
                max_running_requests=batch, chunk_budget=2048, itl_target_s=itl_target_s
            ),
            radix_cache=False,
            overlap=machine.overlap,
        ),
        runner=FormulaRunner(machine, clock),
        clock=clock.now,
    )
    if acceptance is not None:
        drafters = frozenset({DrafterKind.MODEL} if model else {DrafterKind.NGRAM})

        def drafters_of(request: Request) -> list[Drafter]:
            return [] if model else [Sporadic(acceptance, presence, rng, shortest)]

        source = Model(acceptance, machine.draft_token, clock, rng) if model else None
        speculate(engine, config or SpeculationConfig(drafters=drafters), drafters_of, source)
    lengths = random.Random(7)

    def submit(id: int) -> None:
        most = lengths.randint(answer // 2, 3 * answer // 2)
        engine.submit(Request(id, [7] * 32, SamplingParams(max_tokens=most, ignore_eos=True)))

    for id in range(batch):
        submit(id)
    began, tokens = 0.0, 0
    while tokens < batch * steps:
        output = engine.step()
        tokens += len(output.tokens)
        if tokens <= batch:
            began = clock.now()
        for _ in [out for out in output.tokens if out.finish is not None]:
            id += 1
            submit(id)
    return (tokens - batch) / (clock.now() - began)
