"""Warm-up: runs synthetic requests before a worker serves.

Kernels are loaded, compiled or autotuned at first use, and pinning memory stalls the device. Without warm-up,
the first requests and those that decode beside them would see these pauses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from engine.config import EngineConfig
from engine.core.draft_source import DraftSource
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
from engine.executor.runner import ModelRunner

_SHORT: Final = 8
"""Prompt length of the concurrent requests."""
_LARGEST_CROWD: Final = 256
_ENDS: Final = 8
"""Concurrent requests that end with each step: many batch sizes in few steps."""
_SHORTEST: Final = 16
_RATIO: Final = 1.2
"""Ratio of a prompt's length to that of the previous one."""


_SAMPLED: Final[dict[str, Any]] = {
    "temperature": 1.0,
    "top_p": 0.95,
    "presence_penalty": 0.1,
    "logit_bias": ((0, 1.0),),
    "logprobs": 1,
}


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    crowd: int
    """Number of short requests submitted at once."""
    prompts: tuple[int, ...] = ()
    """Lengths of prompts submitted one by one while the short requests decode."""
    alone: bool = False
    """Then a greedy and a sampled request, each with nothing beside it: a single row has its own kernels."""


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
    scheduler = replace(config.scheduler.without_step_targets(), max_waiting_requests=everybody)
    freely = replace(config, radix_cache=False, scheduler=scheduler)
    engine = Engine(freely, runner=runner, drafts=drafts)
    for k in range(plan.crowd):
        sampled = k % 2 == 1
        # Greedy requests end last, so that mixed and all-greedy batches are both run.
        last = k // _ENDS == (plan.crowd - 1) // _ENDS and not sampled
        _submit(engine, id=k, length=_SHORT, max_tokens=2 + k // _ENDS + last, sampled=sampled)
    coming = list(enumerate(plan.prompts, plan.crowd))
    while engine.has_work or coming:
        engine.step()
        if coming:
            id, length = coming.pop(0)
            _submit(engine, id=id, length=length, max_tokens=2)
    for id, sampled in enumerate((False, True) if plan.alone else (), everybody):
        _submit(engine, id=id, length=_SHORT, max_tokens=3, sampled=sampled)
        _finish(engine)
    engine.check_pages()


def _finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def _submit(engine: Engine, *, id: int, length: int, max_tokens: int, sampled: bool = False) -> None:
    prompt = [0] * min(length, engine.max_tokens - 1)
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    # Ids that no served request has: penalties keep state per slot, keyed by request id.
    engine.submit(Request(-1 - id, prompt, replace(sampling, **_SAMPLED) if sampled else sampling))
