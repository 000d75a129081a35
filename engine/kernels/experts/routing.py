"""Routing of tokens to experts without the host: top-k scores, then an order of all pairs by expert.

Torch sorts with several launches of general kernels. Experts are few, so a counting sort takes two: a block
of tokens counts its pairs per expert, and then every pair's place follows from the counts of all blocks.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.pdl import pdl_wait, supports_pdl

_TOKENS: Final = 16
"""Tokens of a block, for many tokens. With 64 the scores of 128 experts do not fit into registers: 2,048
tokens take 0.17 ms.
"""
_FEW: Final = 512
"""Up to this many tokens, blocks have fewer, of one warp each: warps wait for each other at every sum."""
_FEW_TOKENS: Final = 4
_FEW_WARPS: Final = 1
_MANY_BLOCKS: Final = 128
"""From here on one launch sums the counts of the blocks before each, in place of every block by itself."""


class ExpertRouting(NamedTuple):
    """T tokens, k experts for each, P = T * k pairs, E experts."""

    weights: torch.Tensor
    """[T, k] float32"""
    order: torch.Tensor
    """[P] int32: pairs t * k + j in order of experts; undefined after starts[E]."""
    starts: torch.Tensor
    """[E + 1] int32"""
    places: torch.Tensor
    """[T, k] int32: places in `order`; -1 in rows of padding."""


def route_tokens(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    choice: torch.Tensor | None,
    live: torch.Tensor,
    totals: torch.Tensor,
    *,
    per_token: int,
    sigmoid: bool,
    normalized: bool,
    scale: float,
) -> ExpertRouting:
    """Route the first `live` [1] rows of `logits` [T, E] float32; of equal scores the first expert's wins.

    `bias` [E] float32 is added to scores where experts are chosen. `choice` [T, E] float32 replaces these
    sums where not all experts are eligible. The tokens of each expert are added to `totals` [E] int64, also
    when a CUDA graph is replayed.
    """
    num_tokens, num_experts = logits.shape
    tokens, warps = (_FEW_TOKENS, _FEW_WARPS) if num_tokens <= _FEW else (_TOKENS, 4)
    blocks = triton.cdiv(num_tokens, tokens)
    columns = triton.next_power_of_2(num_experts)
    ints = partial(torch.empty, dtype=torch.int32, device=logits.device)
    weights = torch.empty((num_tokens, per_token), dtype=torch.float32, device=logits.device)
    experts = ints((num_tokens, per_token))
    ranks = ints((num_tokens, per_token))
    counts = ints((blocks, columns))
    order = ints(num_tokens * per_token)
    places = ints((num_tokens, per_token))
    starts = ints(num_experts + 1)
    if not num_tokens:
        return ExpertRouting(weights, order, starts.zero_(), places)
    use_pdl = supports_pdl(logits.device)
    _choose[(blocks,)](
        logits,
        logits if bias is None else bias,
        logits if choice is None else choice,
        live,
        weights,
        experts,
        ranks,
        counts,
        num_tokens,
        num_experts=num_experts,
        columns=columns,
        per_token=per_token,
        has_bias=bias is not None,
        has_choice=choice is not None,
        sigmoid=sigmoid,
        normalized=normalized,
        scale=scale,
        tokens=tokens,
        slots=triton.next_power_of_2(per_token),
        use_pdl=use_pdl,
        num_warps=warps,
        launch_pdl=use_pdl,
    )
    is_summed = blocks > _MANY_BLOCKS
    _place[(blocks,)](
        experts,
        ranks,
        _summed(counts) if is_summed else counts,
        starts,
        totals,
        order,
        places,
        num_tokens,
        blocks,
        num_experts=num_experts,
        columns=columns,
        per_token=per_token,
        tokens=tokens,
        rows=32,
        is_summed=is_summed,
        use_pdl=use_pdl,
        num_warps=4,
        launch_pdl=use_pdl,
    )
    return ExpertRouting(weights, order, starts, places)


def _summed(counts: torch.Tensor) -> torch.Tensor:
    """Inclusive sums of `counts` [B, columns] over B, for which torch has one thread for each column."""
    blocks, columns = counts.shape
    sums = torch.empty_like(counts)
    width = min(columns, 4)
    _sum[(columns // width,)](counts, sums, blocks, columns=columns, width=width, rows=256, num_warps=4)
    return sums


@triton.jit(do_not_specialize=["blocks"])  # type: ignore[untyped-decorator]
def _sum(  # type: ignore[no-untyped-def]
    counts_ptr, sums_ptr, blocks, columns: tl.constexpr, width: tl.constexpr, rows: tl.constexpr
):
    column = tl.program_id(0) * width + tl.arange(0, width)
    before = tl.zeros([width], dtype=tl.int32)
    for first in range(0, blocks, rows):
        row = first + tl.arange(0, rows)
        cells = row[:, None] * columns + column[None, :]
        counts = tl.load(counts_ptr + cells, mask=(row < blocks)[:, None], other=0)
        tl.store(sums_ptr + cells, tl.cumsum(counts, axis=0) + before[None, :], mask=(row < blocks)[:, None])
        before += tl.sum(counts, axis=0)


@triton.jit(do_not_specialize=["num_tokens"])  # type: ignore[untyped-decorator]
def _choose(  # type: ignore[no-untyped-def]
    logits_ptr,
    bias_ptr,
    choice_ptr,
    live_ptr,
    weights_ptr,
    experts_ptr,
    ranks_ptr,
    counts_ptr,
    num_tokens,
    num_experts: tl.constexpr,
    columns: tl.constexpr,
    per_token: tl.constexpr,
    has_bias: tl.constexpr,
    has_choice: tl.constexpr,
    sigmoid: tl.constexpr,
    normalized: tl.constexpr,
    scale: tl.constexpr,
    tokens: tl.constexpr,
    slots: tl.constexpr,
    use_pdl: tl.constexpr,
):
    block = tl.program_id(0)
    token = block * tokens + tl.arange(0, tokens)
    expert = tl.arange(0, columns)
    real = expert < num_experts
    inside = (token < num_tokens)[:, None] & real[None, :]
    cells = token[:, None].to(tl.int64) * num_experts + expert[None, :]
    pdl_wait(use_pdl)
    logits = tl.load(logits_ptr + cells, mask=inside, other=float("-inf"))
    if sigmoid:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        powers = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        scores = powers / tl.sum(powers, axis=1)[:, None]
    choice = scores
    if has_bias:
        choice += tl.load(bias_ptr + expert, mask=real, other=0.0)[None, :]
    if has_choice:
        choice = tl.load(choice_ptr + cells, mask=inside, other=float("-inf"))
    choice = tl.where(real[None, :], choice, float("-inf"))
    # NaN compares as nothing, and would choose no expert at all: the sampler reports it from the logits.
    choice = tl.where(choice == choice, choice, float("-inf"))

    live = token < tl.load(live_ptr)
    taken = (expert[None, :] >= num_experts) | (token[:, None] < 0)
    counts = tl.zeros([columns], dtype=tl.int32)
    slot = tl.arange(0, slots)
    weights = tl.zeros([tokens, slots], dtype=tl.float32)
    experts = tl.zeros([tokens, slots], dtype=tl.int32)
    ranks = tl.zeros([tokens, slots], dtype=tl.int32)
    for j in tl.static_range(per_token):
        eligible = tl.where(taken, float("-inf"), choice)
        best = tl.max(eligible, axis=1)
        ties = (eligible == best[:, None]) & (taken == 0)
        chosen = tl.min(tl.where(ties, expert[None, :], columns), axis=1)
        mine = expert[None, :] == chosen[:, None]
        taken = taken | mine
        counted = (mine & live[:, None]).to(tl.int32)
        before = tl.cumsum(counted, axis=0) - counted + counts[None, :]
        counts += tl.sum(counted, axis=0)
        here = slot[None, :] == j
        weight = tl.sum(tl.where(mine, scores, 0.0), axis=1)
        weights = tl.where(here, weight[:, None], weights)
        experts = tl.where(here, chosen[:, None], experts)
        ranks = tl.where(here, tl.sum(tl.where(mine, before, 0), axis=1)[:, None], ranks)
    if normalized:
        weights = weights / tl.sum(weights, axis=1)[:, None]
    pair = token[:, None] * per_token + slot[None, :]
    stored = (token < num_tokens)[:, None] & (slot < per_token)[None, :]
    tl.store(weights_ptr + pair, weights * scale, mask=stored)
    tl.store(experts_ptr + pair, tl.where(live[:, None], experts, -1), mask=stored)
    tl.store(ranks_ptr + pair, ranks, mask=stored)
    tl.store(counts_ptr + block * columns + expert, counts)


@triton.jit(do_not_specialize=["num_tokens", "blocks"])  # type: ignore[untyped-decorator]
def _place(  # type: ignore[no-untyped-def]
    experts_ptr,
    ranks_ptr,
    counts_ptr,
    starts_ptr,
    totals_ptr,
    order_ptr,
    places_ptr,
    num_tokens,
    blocks,
    num_experts: tl.constexpr,
    columns: tl.constexpr,
    per_token: tl.constexpr,
    tokens: tl.constexpr,
    rows: tl.constexpr,
    is_summed: tl.constexpr,
    use_pdl: tl.constexpr,
):
    block = tl.program_id(0)
    expert = tl.arange(0, columns)
    pdl_wait(use_pdl)
    if is_summed:
        totals = tl.load(counts_ptr + (blocks - 1) * columns + expert)
        earlier = tl.load(counts_ptr + (block - 1) * columns + expert, mask=expert * 0 + block > 0, other=0)
    else:
        totals = tl.zeros([columns], dtype=tl.int32)
        earlier = tl.zeros([columns], dtype=tl.int32)
        for first in range(0, blocks, rows):
            row = first + tl.arange(0, rows)
            counts = tl.load(
                counts_ptr + row[:, None] * columns + expert[None, :], mask=(row < blocks)[:, None], other=0
            )
            totals += tl.sum(counts, axis=0)
            earlier += tl.sum(tl.where((row < block)[:, None], counts, 0), axis=0)
    ends = tl.cumsum(totals, axis=0)
    if block == 0:
        tl.store(starts_ptr, 0)
        tl.store(starts_ptr + 1 + expert, ends, mask=expert < num_experts)
        before = tl.load(totals_ptr + expert, mask=expert < num_experts, other=0)
        tl.store(totals_ptr + expert, before + totals, mask=expert < num_experts)
    base = ends - totals + earlier
    token = block * tokens + tl.arange(0, tokens)
    for j in tl.static_range(per_token):
        pair = token * per_token + j
        chosen = tl.load(experts_ptr + pair, mask=token < num_tokens, other=-1)
        rank = tl.load(ranks_ptr + pair, mask=token < num_tokens, other=0)
        start = tl.sum(tl.where(expert[None, :] == chosen[:, None], base[None, :], 0), axis=1)
        place = tl.where(chosen >= 0, start + rank, -1)
        tl.store(places_ptr + pair, place, mask=token < num_tokens)
        tl.store(order_ptr + place, pair, mask=chosen >= 0)
