"""Engines whose drafts come from a model or a head, what they answer, and what they drafted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from engine.config import SpeculationConfig
from engine.core.draft_source import Wanted
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from engine.speculation.kinds import DrafterKind
from tests.unit.tiny import make_config

PROMPTS = [list(range(5, 5 + n)) for n in (1, 9, 30, 57)]
DRAFTS = 4
MODEL_ONLY = frozenset({DrafterKind.MODEL})
SCHEDULES: Final[list[dict[str, Any]]] = [
    {},
    {"overlap": True},
    {"chunk_budget": 8},
    {"num_pages": 40, "chunk_budget": 8},
    {"radix_cache": False, "chunk_budget": None},
]


def greedy(max_tokens: int) -> list[SamplingParams]:
    return [SamplingParams(max_tokens=max_tokens, ignore_eos=True)] * len(PROMPTS)


def requests(samplings: list[SamplingParams]) -> list[Request]:
    return [Request(k, p, s) for k, (p, s) in enumerate(zip(PROMPTS, samplings, strict=True))]


def engine_with(target: Path, draft: Path | None, **changes: Any) -> Engine:
    """`draft`: a model, or a head; None: without drafts."""
    speculation = SpeculationConfig(
        drafters=MODEL_ONLY, num_draft_tokens=DRAFTS, adaptive=False, model_path=draft
    )
    changes = {"num_pages": 200, "max_model_len": 256, **changes}
    return Engine(make_config(target, speculation=speculation if draft else None, **changes))


class Logprob(float):
    """Equal to others as far as rounding cannot show."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and math.isclose(self, other, rel_tol=0.0, abs_tol=1e-3)

    __hash__ = float.__hash__


def answers(engine: Engine, requests: list[Request]) -> dict[int, list[Any]]:
    """What each token of a request came with."""
    told: dict[int, list[Any]] = {request.id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        output = engine.step()
        for out in output.tokens:
            told[out.request.id].append((out.token, out.position, out.finish, out.is_stop))
            if out.logprobs is not None:
                told[out.request.id][-1] += (Logprob(out.logprobs.logprob), len(out.logprobs.top))
        for request, error in output.failed:
            told[request.id].append(type(error))
    engine.check_pages()
    return told


class Watched:
    """The engine's drafts, and what they were drafted behind."""

    def __init__(self, engine: Engine) -> None:
        assert engine.drafts is not None
        assert engine.scheduler.speculator is not None
        self.source = engine.drafts
        self.drafted: list[tuple[list[int], list[int]]] = []
        """Tokens, and the draft behind them."""
        engine.scheduler.speculator._model = self  # type: ignore[assignment]

    def draft(self, wanted: list[Wanted]) -> list[list[int]]:
        found = self.source.draft(wanted)
        for want, tokens in zip(wanted, found, strict=True):
            if tokens:
                self.drafted.append((list(want.request.tokens(0, want.request.num_known)), tokens))
        return found

    def ended(self, request: int) -> None:
        self.source.ended(request)
