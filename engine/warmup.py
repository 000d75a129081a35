"""What takes long at its first time is done before the first request comes.

Kernels are loaded, compiled or chosen when they are first needed, and a device stands still while the system
pins memory for it. Left to the first users, that is a pause for them and for all who decode beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from engine.config import EngineConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
from engine.executor.runner import ModelRunner

__all__ = ["WarmupPlan", "warm_up", "warmup_plan_for"]

_SHORT: Final = 8
"""Tokens of the crowd's prompts."""
_LARGEST_CROWD: Final = 256
_ENDS: Final = 8
"""Answers of the crowd that end with each step: batches of many sizes, and few steps."""
_SHORTEST: Final = 16
_RATIO: Final = 1.2
"""Of a prompt's length to that of the one before."""


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
    """Short prompts, all at once."""
    prompts: tuple[int, ...] = ()
    """Lengths of prompts that come one by one while the crowd decodes."""


def warmup_plan_for(config: EngineConfig) -> WarmupPlan:
    """For a GPU: batches and prompts of all sizes that are captured, and a prompt of more than one chunk.

    A CPU has less to prepare, and would take minutes for what takes a GPU a second.
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
    return WarmupPlan(min(_LARGEST_CROWD, config.scheduler.max_running_requests), tuple(prompts))


def warm_up(runner: ModelRunner, config: EngineConfig, plan: WarmupPlan) -> None:
    """Serve prompts that nobody sent, with an engine of its own: before another one uses the runner's pool.

    What stays of it is what device and libraries have learnt, and KV in pages that are free.
    """
    everybody = plan.crowd + len(plan.prompts)
    scheduler = replace(config.scheduler, itl_target_s=None, max_waiting_requests=everybody)
    freely = replace(config, radix_cache=False, scheduler=scheduler)
    engine = Engine(freely, runner=runner)
    for k in range(plan.crowd):
        sampled = k % 2 == 1
        # Greedy ones end last: there are batches of both kinds, and of greedy rows alone.
        last = k // _ENDS == (plan.crowd - 1) // _ENDS and not sampled
        _submit(engine, id=k, length=_SHORT, max_tokens=2 + k // _ENDS + last, sampled=sampled)
    coming = list(enumerate(plan.prompts, plan.crowd))
    while engine.has_work or coming:
        engine.step()
        if coming:
            id, length = coming.pop(0)
            _submit(engine, id=id, length=length, max_tokens=2)
    engine.check_pages()


def _submit(engine: Engine, *, id: int, length: int, max_tokens: int, sampled: bool = False) -> None:
    prompt = [0] * min(length, engine.max_tokens - 1)
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    # No request that is served has such an id: what a slot's last one said is known by it.
    engine.submit(Request(-1 - id, prompt, replace(sampling, **_SAMPLED) if sampled else sampling))
