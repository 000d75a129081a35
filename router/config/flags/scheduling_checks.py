"""Checks the flags of batching and scheduling: chunk sizes, and flags that contradict each other.

A flag that would have no effect is a mistake as well: its user expects one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from engine.config import Batching, Forecast, Policy
from engine.sched.presets import PRESETS
from engine.speculation.kinds import DrafterKind, Speculation
from router.config.choices import Mode
from router.config.option import flag_name
from router.config.settings import RouterConfig

_MOST_TOKENS: Final = 1 << 20
"""Largest step, in tokens."""


def batching_problems(config: RouterConfig) -> Iterator[str]:
    """Step and targets."""
    yield from _pause(config)
    aligned = PRESETS[config.scheduling.preset].scheduler.page_aligned_chunks
    for flag, chunk in config.everywhere("chunked_prefill_size"):
        yield from _chunk(flag, chunk, config.page_size if aligned else 1)


def scheduling_problems(config: RouterConfig) -> Iterator[str]:
    """Policies, chunks, forecast."""
    asked = config.scheduling
    factor = asked.schedule_conservativeness
    if factor is not None and PRESETS[asked.preset].scheduler.forecast is Forecast.NONE:
        yield (
            f"--schedule-conservativeness {factor:g} means nothing with --preset {asked.preset.value}, which"
            " forecasts no output; leave one of them out"
        )
    yield from _draft_model(config)
    yield from _policy(config)
    yield from _partial_prefills(config)
    yield from _whole_prompts(config)
    if _sizes_chunks(config) and asked.effective_batching is not Batching.MIXED:
        yield (
            f"--itl-target-ms {config.itl_target_ms:g} sizes chunks beside decodes, and with --batching"
            f" {asked.effective_batching.value} there are none; leave it out, or use --batching mixed"
        )


def _draft_model(config: RouterConfig) -> Iterator[str]:
    asked, speculative = config.scheduling, config.scheduling.effective_speculative
    uses = DrafterKind.MODEL in speculative.drafters and speculative is not Speculation.MTP
    if asked.speculative_model is not None and not uses:
        yield (
            f"--speculative-model {asked.speculative_model} has no effect with --speculative"
            f" {speculative.value}; use --speculative model or auto"
        )
    if speculative is Speculation.MODEL and asked.speculative_model is None:
        yield "--speculative model needs --speculative-model MODEL"


def _pause(config: RouterConfig) -> Iterator[str]:
    pause, target = config.pause_target_ms, config.itl_target_ms
    if pause is None:
        return
    if config.mode is not Mode.ADAPTIVE:
        yield (
            f"--pause-target-ms {pause:g} is for --mode adaptive; leave it out with --mode"
            f" {config.mode.value}, where --itl-target-ms bounds each step"
        )
    elif not target:
        yield f"--pause-target-ms {pause:g} needs --itl-target-ms, the mean that the steps between keep"
    elif not target <= pause < math.inf:
        yield f"--pause-target-ms {pause:g}: use at least --itl-target-ms {target:g}"
    for reason in _no_sized_chunks(config):
        yield f"--pause-target-ms {pause:g} sizes chunks beside decodes, and {reason}; leave one of them out"


def _no_sized_chunks(config: RouterConfig) -> Iterator[str]:
    """Why a worker of some role computes no chunks beside decodes whose size a target could set."""
    asked = config.scheduling
    if asked.disable_chunked_prefill:
        yield "--disable-chunked-prefill computes prompts whole"
    for flag, chunk in config.everywhere("chunked_prefill_size"):
        if chunk == -1:
            yield f"{flag} -1 computes prompts whole"
    if asked.effective_batching is not Batching.MIXED:
        given = "--preset" if asked.batching is None else "--batching"
        value = asked.preset if asked.batching is None else asked.batching
        yield f"with {given} {value.value} there are none"


def _sizes_chunks(config: RouterConfig) -> bool:
    """Whether an ITL target is given for chunks alone; --mode adaptive also places requests by it."""
    return bool(config.itl_target_ms) and config.mode is not Mode.ADAPTIVE


def _policy(config: RouterConfig) -> Iterator[str]:
    asked, policy = config.scheduling, config.scheduling.effective_policy
    threshold = asked.priority_preemption_threshold
    if threshold is not None and policy is not Policy.PRIORITY:
        yield f"--priority-preemption-threshold {threshold} needs --schedule-policy priority"
    if asked.low_priority_values_first and policy is not Policy.PRIORITY:
        yield "--low-priority-values-first needs --schedule-policy priority"
    if asked.aging_tokens is not None and asked.aging_tokens > 0 and policy is Policy.SHORTEST:
        yield (
            f"--aging-tokens {asked.aging_tokens} means nothing with --schedule-policy shortest, which ages"
            " prompts by itself; leave it out, or use another policy"
        )
    if asked.fair_share_tokens is not None and policy in (Policy.LPM, Policy.DFS_WEIGHT):
        yield (
            f"--fair-share-tokens {asked.fair_share_tokens} does not go with --schedule-policy"
            f" {policy.value}, which orders all waiting requests together; use shortest, fcfs or priority"
        )


def _partial_prefills(config: RouterConfig) -> Iterator[str]:
    asked, base = config.scheduling, PRESETS[config.scheduling.preset].scheduler
    text = asked.long_prefill_token_threshold
    if text not in (None, "auto") and not text.isdecimal():
        yield (
            f"--long-prefill-token-threshold {text}: use a number of tokens, 0 for no limit, or auto for 4%"
            " of the context"
        )
        return
    threshold = asked.effective_threshold
    if (
        text is not None
        and isinstance(threshold, int)
        and base.page_aligned_chunks
        and threshold < config.page_size
    ):
        yield (
            f"--long-prefill-token-threshold {threshold} is less than a page, and chunks are whole pages; use"
            f" --page-size {config.page_size} or more"
        )
    largest = asked.max_prefill_tokens
    if largest is not None and base.page_aligned_chunks and 0 < largest < config.page_size:
        yield (
            f"--max-prefill-tokens {largest} is less than a page, and chunks are whole pages; use --page-size"
            f" {config.page_size} or more"
        )
    most, most_long = asked.effective_partial_prefills, asked.max_long_partial_prefills
    if most_long is not None and threshold is None:
        yield f"--max-long-partial-prefills {most_long} means nothing without --long-prefill-token-threshold"
    if most is not None and most_long is not None and most_long > most:
        yield (
            f"--max-long-partial-prefills {most_long} is more than --max-num-partial-prefills {most};"
            " lower the one or raise the other"
        )
    if asked.fair_partial_prefills and (most is None or most < 2):
        yield (
            "--fair-partial-prefills shares a step between that many prompts: give"
            " --max-num-partial-prefills 2 or more"
        )


def _whole_prompts(config: RouterConfig) -> Iterator[str]:
    """Chunked prefill is off: --disable-chunked-prefill, or --chunked-prefill-size -1."""
    asked = config.scheduling
    chunks = dict(config.everywhere("chunked_prefill_size"))
    unlimited = [flag for flag, chunk in chunks.items() if chunk == -1]
    if asked.disable_chunked_prefill and unlimited:
        yield f"--disable-chunked-prefill keeps the budget and {unlimited[0]} -1 has none; give one of them"
    if asked.disable_chunked_prefill:
        off = "--disable-chunked-prefill"
    elif config.chunked_prefill_size == -1:
        off = "--chunked-prefill-size -1"
    else:
        return
    for name in ("long_prefill_token_threshold", "max_num_partial_prefills", "max_long_partial_prefills"):
        if (value := getattr(asked, name)) not in (None, "0"):
            yield (
                f"{flag_name(name)} {value} divides prompts, which {off} computes whole;"
                " leave one of them out"
            )
    if asked.fair_partial_prefills:
        yield f"--fair-partial-prefills divides prompts, which {off} computes whole; leave one of them out"
    if _sizes_chunks(config):
        yield (
            f"--itl-target-ms {config.itl_target_ms:g} is met by chunks, and {off} computes prompts whole;"
            " leave one of them out"
        )
    context = config.max_model_len
    for flag, chunk in chunks.items():
        if asked.disable_chunked_prefill and context is not None and 0 < chunk < context:
            yield (
                f"with --disable-chunked-prefill a step of {flag} {chunk} cannot hold a prompt of"
                f" --max-model-len {context}; raise the one or lower the other"
            )


def _chunk(flag: str, chunk: int, page_size: int) -> Iterator[str]:
    if chunk == -1:
        return
    if chunk < 1:
        yield f"{flag} {chunk}: use a number of tokens, or -1 to turn chunking off"
    elif chunk > _MOST_TOKENS:
        yield f"{flag} {chunk}: use at most {_MOST_TOKENS}, or -1 to turn chunking off"
    elif page_size >= 1 and chunk % page_size:
        below = chunk // page_size * page_size
        near = " or ".join(str(near) for near in (below, below + page_size) if near)
        yield (
            f"--page-size {page_size} does not divide {flag} {chunk}; use {_page_sizes_for(chunk)}, or a step"
            f" of {near}"
        )


def _page_sizes_for(chunk: int) -> str:
    fitting = [str(size) for size in (1, 8, 16, 32, 64, 128) if chunk % size == 0]
    return f"{', '.join(fitting[:-1])} or {fitting[-1]}" if len(fitting) > 1 else fitting[0]
