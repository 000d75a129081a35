"""Warm-up: runs synthetic requests before a worker serves.

Kernels are loaded, compiled or autotuned at first use, and pinning memory stalls the device. Without warm-up,
the first requests and those that decode beside them would see these pauses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from engine.config import EngineConfig, SpeculationConfig
from engine.core.draft_source import DraftSource
from engine.core.read import Read
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from engine.sampling.scoring import SCORED
from engine.speculation.kinds import NO_HINTS, DrafterKind, DraftHints

_Requests: TypeAlias = tuple[tuple[dict[str, Any], DraftHints], ...]
"""Sampling parameters and hints of each."""

_SHORT: Final = 8
"""Prompt length of the concurrent requests."""
_LARGEST_CROWD: Final = 256
_ENDS: Final = 8
"""Concurrent requests that end with each step: many batch sizes in few steps."""
_SHORTEST: Final = 16
_RATIO: Final = 1.2
"""Ratio of a prompt's length to that of the previous one."""
_COARSE_RATIO: Final = 2.0
"""The same for prompts of more tokens than are captured."""


_SAMPLED: Final[dict[str, Any]] = {
    "temperature": 1.0,
    "top_p": 0.95,
    "presence_penalty": 0.1,
    "logit_bias": ((0, 1.0),),
    "logprobs": 1,
}
_PREDICTED: Final = DraftHints(prediction=(0,) * _SHORT)
_ALONE: Final[_Requests] = (({}, NO_HINTS), (_SAMPLED, NO_HINTS), (SCORED, NO_HINTS))
_DRAFTED: Final[_Requests] = (({}, _PREDICTED), (_SAMPLED, _PREDICTED))


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    crowd: int
    """Number of short requests submitted at once."""
    prompts: tuple[int, ...] = ()
    """Lengths of prompts submitted one by one while the short requests decode."""
    alone: bool = False
    """Then requests with nothing beside them: a single row has its own kernels, and so have scored prompts
    and, with speculation, drafted tokens."""


def warmup_plan_for(config: EngineConfig) -> WarmupPlan:
    """On a GPU: batches and prompts of all captured sizes, and a prompt of more than one chunk.

    On a CPU one request: little depends on sizes there, and all of them would take minutes.
    """
    if config.device == "cpu":
        return WarmupPlan(crowd=1)
    prompts = []
    length = float(_SHORTEST)
    largest = float(config.cuda_graph_max_tokens)
    if not config.scheduler.chunked_prefill:  # longer prompts are refused
        largest = min(largest, config.scheduler.prefill_limit(config.max_model_len))
    while length < largest:
        prompts.append(round(length))
        length *= _RATIO
    budget = config.scheduler.chunk_budget
    if budget is not None and config.scheduler.chunked_prefill:
        length = max(largest, length) * _COARSE_RATIO
        while length < budget:
            prompts.append(round(length))
            length *= _COARSE_RATIO
        prompts.append(budget + _SHORTEST)
    crowd = min(_LARGEST_CROWD, config.scheduler.max_running_requests)
    return WarmupPlan(crowd, tuple(prompts), alone=True)


def warm_up(
    runner: ModelRunner, config: EngineConfig, plan: WarmupPlan, drafts: DraftSource | None = None
) -> None:
    """Run `plan` with a separate engine on `runner`, before any other engine uses its pool.

    Afterwards all pages are free; the KV left in them is never read.
    """
    everybody = plan.crowd + len(plan.prompts)
    scheduler = replace(
        config.scheduler.without_step_targets(),
        max_waiting_requests=everybody,
        speculation=_everything_drafted(config.scheduler.speculation),
    )
    freely = replace(config, radix_cache=False, scheduler=scheduler)
    engine = Engine(freely, runner=runner, drafts=drafts)
    for k in range(plan.crowd):
        sampled = k % 2 == 1
        # Greedy requests end last, so that mixed and all-greedy batches are both run.
        last = k // _ENDS == (plan.crowd - 1) // _ENDS and not sampled
        asks = _SAMPLED if sampled else {}
        _submit(engine, id=k, length=_SHORT, max_tokens=2 + k // _ENDS + last, asks=asks)
    coming = list(enumerate(plan.prompts, plan.crowd))
    while engine.has_work or coming:
        engine.step()
        if coming:
            id, length = coming.pop(0)
            _submit(engine, id=id, length=length, max_tokens=2)
    if plan.alone:
        drafted = scheduler.speculation is not None
        for id, (asks, hints) in enumerate(_ALONE + _DRAFTED if drafted else _ALONE, everybody):
            _submit(engine, id=id, length=_SHORT, max_tokens=3, asks=asks, hints=hints)
            _finish(engine)
    engine.check_pages()


def _finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def _everything_drafted(speculation: SpeculationConfig | None) -> SpeculationConfig | None:
    """Whatever it costs, and for requests that predict their answer."""
    if speculation is None:
        return None
    drafters = speculation.drafters | {DrafterKind.PREDICTION}
    return replace(speculation, adaptive=False, drafters=drafters)


def _submit(
    engine: Engine,
    *,
    id: int,
    length: int,
    max_tokens: int,
    asks: Mapping[str, Any] = MappingProxyType({}),
    hints: DraftHints = NO_HINTS,
) -> None:
    prompt = [0] * min(length, engine.max_tokens - 1)
    if (pooling := engine.config.pooling) is not None:
        read = Read(pooling=pooling.pooling)
        engine.submit(Request(-1 - id, prompt, SamplingParams(max_tokens=0), read=read))
        return
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **asks)
    # Ids that no served request has: penalties keep state per slot, keyed by request id.
    engine.submit(Request(-1 - id, prompt, sampling, hints=hints))
