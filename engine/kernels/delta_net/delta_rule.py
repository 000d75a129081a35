"""The gated delta rule on GPUs: engine/mixers/recurrence/delta_rule.py has its equations.

A decode is one launch, which reads and writes each state once, and so is a verify chunk, whose rows follow
one another in it. A chunk takes two: what its tokens write
depends on the tokens before them in the same stretch through a triangular system, which is solved for all
stretches at once; then the stretches of a request follow one another, each in a few products. States and
sums are in float32, products of chunks in TF32.

The chunked form is from Yang, Wang, Zhang, Shen and Kim, "Parallelizing Linear Transformers with the Delta
Rule over Sequence Length" (2024).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.delta_net.single_rows import SingleRows

STRETCH: Final = 64
"""Tokens of a chunk that are computed together."""
_VALUES: Final = 32
"""Features of a value head that a program has; the same for any batch, so that sums are too."""
_EPS: Final = tl.constexpr(1e-6)


class DeltaShape(NamedTuple):
    """Shape of queries, keys and values in a row, in this order."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


class Stretches(NamedTuple):
    """The chunks of R requests as N stretches of at most `STRETCH` rows, in order: int32 tensors."""

    starts: torch.Tensor
    """[N]: first rows."""
    counts: torch.Tensor
    """[N]: numbers of rows."""
    firsts: torch.Tensor
    """[N]: first rows of their requests."""
    sources: torch.Tensor
    """[N]: slots of the states before their requests; negative: none."""
    slots: torch.Tensor
    """[N, 2]: up to two places where the state after a stretch goes; negative: none."""
    indptr: torch.Tensor
    """[R + 1]: request r has stretches indptr[r] to indptr[r + 1]."""


def suits(shape: DeltaShape) -> bool:
    """Whether the kernels support heads of these sizes."""
    powers = all(size & (size - 1) == 0 for size in (shape.key_dim, shape.value_dim))
    return powers and shape.key_dim >= 16 and shape.value_dim >= 16


def delta_decodes(
    rows: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    decodes: SingleRows,
    out: torch.Tensor | None,
    shape: DeltaShape,
    *,
    kept_gates: torch.Tensor | None = None,
) -> None:
    """Rows that follow one another singly: convolved `rows` [R, F], `log_decay` and `beta` [R, value_heads].

    `states` [slot, value_head, key_dim, value_dim] float32 are read and written as `decodes` says. `out` is
    [R, value_heads, value_dim]; None: only the states are wanted. `kept_gates` [2, R, value_heads] float32:
    where log decays and rates are copied to.
    """
    _launch_decode(rows[None], log_decay, beta, states, 0, decodes, out, shape, kept_gates)


def delta_again(
    rows: torch.Tensor,
    gates: torch.Tensor,
    states: torch.Tensor,
    layer_values: int,
    decodes: SingleRows,
    shape: DeltaShape,
) -> None:
    """The states of L layers at once, from kept `rows` [L, capacity, F] and `gates` [L, 2, capacity, heads].

    `states`: of the first layer; those of the next one are `layer_values` numbers after them.
    """
    _launch_decode(rows, gates[0, 0], gates[0, 1], states, layer_values, decodes, None, shape, None)


def _launch_decode(
    rows: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    layer_values: int,
    decodes: SingleRows,
    out: torch.Tensor | None,
    shape: DeltaShape,
    kept_gates: torch.Tensor | None,
) -> None:
    values = min(_VALUES, shape.value_dim)
    layers = len(rows)
    count = len(decodes.counts)
    nothing = log_decay  # of a pointer that is not used
    _decode[(count, layers * shape.value_heads, shape.value_dim // values)](
        rows,
        log_decay,
        beta,
        states,
        decodes.sources,
        decodes.slots,
        decodes.counts,
        nothing if out is None else out,
        nothing if kept_gates is None else kept_gates[0],
        nothing if kept_gates is None else kept_gates[1],
        rows.stride(0),
        2 * rows.shape[1] * shape.value_heads,
        layer_values,
        states.stride(0),
        reads=out is not None,
        keeps=kept_gates is not None,
        key_heads=shape.key_heads,
        value_heads=shape.value_heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        values=values,
        num_warps=4,
    )


def delta_chunks(
    rows: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    stretches: Stretches,
    out: torch.Tensor,
    shape: DeltaShape,
) -> None:
    """The same for requests with several rows each."""
    count = len(stretches.starts)
    solved = torch.empty(
        (count, shape.value_heads, 2, STRETCH, STRETCH), dtype=torch.float32, device=rows.device
    )
    _solve[(count, shape.value_heads)](
        rows,
        log_decay,
        beta,
        stretches.starts,
        stretches.counts,
        solved,
        key_heads=shape.key_heads,
        value_heads=shape.value_heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        stretch=STRETCH,
        num_warps=8,
    )
    values = min(_VALUES, shape.value_dim)
    _scan[(shape.value_dim // values, shape.value_heads, len(stretches.indptr) - 1)](
        rows,
        log_decay,
        beta,
        states,
        stretches.starts,
        stretches.counts,
        stretches.sources,
        stretches.slots,
        stretches.indptr,
        solved,
        out,
        states.stride(0),
        key_heads=shape.key_heads,
        value_heads=shape.value_heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        values=values,
        stretch=STRETCH,
        num_warps=8,
        num_stages=1,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _decode(  # type: ignore[no-untyped-def]
    rows_ptr,
    log_decay_ptr,
    beta_ptr,
    states_ptr,
    sources_ptr,
    slots_ptr,
    counts_ptr,
    out_ptr,
    kept_decay_ptr,
    kept_beta_ptr,
    rows_layer_stride,
    gates_layer_stride,
    states_layer_stride,
    slot_stride,
    reads: tl.constexpr,
    keeps: tl.constexpr,
    key_heads: tl.constexpr,
    value_heads: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    values: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64)
    count = tl.load(counts_ptr + first)
    layer = (tl.program_id(1) // value_heads).to(tl.int64)
    head = tl.program_id(1) % value_heads
    keys: tl.constexpr = key_heads * key_dim
    features: tl.constexpr = 2 * keys + value_heads * value_dim
    k_feature = tl.arange(0, key_dim)
    v_feature = tl.program_id(2) * values + tl.arange(0, values)
    source = tl.load(sources_ptr + first).to(tl.int64)
    slot = tl.load(slots_ptr + first).to(tl.int64)
    place = head * key_dim * value_dim + k_feature[:, None] * value_dim + v_feature[None, :]
    place += layer * states_layer_stride
    known = (k_feature[:, None] >= 0) & (source >= 0) & (count > 0)
    state = tl.load(states_ptr + source * slot_stride + place, mask=known, other=0.0)
    of_key = head // (value_heads // key_heads) * key_dim + k_feature
    for number in range(count):
        row = rows_ptr + layer * rows_layer_stride + (first + number) * features
        gate = (first + number) * value_heads + head
        q = tl.load(row + of_key).to(tl.float32)
        k = tl.load(row + keys + of_key).to(tl.float32)
        v = tl.load(row + 2 * keys + head * value_dim + v_feature).to(tl.float32)
        q = q * tl.rsqrt(tl.sum(q * q, axis=0) + _EPS) * (key_dim**-0.5)
        k = k * tl.rsqrt(tl.sum(k * k, axis=0) + _EPS)
        log_decay = tl.load(log_decay_ptr + layer * gates_layer_stride + gate)
        beta = tl.load(beta_ptr + layer * gates_layer_stride + gate)
        state *= tl.exp(log_decay)
        new = (v - tl.sum(state * k[:, None], axis=0)) * beta
        state += k[:, None] * new[None, :]
        if reads:
            result = tl.sum(state * q[:, None], axis=0)
            target = out_ptr + gate * value_dim + v_feature
            tl.store(target, result.to(out_ptr.dtype.element_ty))
        if keeps:
            once = tl.program_id(2) == 0
            tl.store(kept_decay_ptr + gate, log_decay, mask=once)
            tl.store(kept_beta_ptr + gate, beta, mask=once)
    if slot >= 0:
        tl.store(states_ptr + slot * slot_stride + place, state)


@triton.jit
def _to_unit(heads):  # type: ignore[no-untyped-def]
    """What scales each of `heads` to unit length."""
    heads = heads.to(tl.float32)
    return tl.rsqrt(tl.sum(heads * heads, axis=1) + _EPS)


@triton.jit  # type: ignore[untyped-decorator]
def _solve(  # type: ignore[no-untyped-def]
    rows_ptr,
    log_decay_ptr,
    beta_ptr,
    starts_ptr,
    counts_ptr,
    solved_ptr,
    key_heads: tl.constexpr,
    value_heads: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    stretch: tl.constexpr,
):
    """The inverse of a stretch's system, and what each of its queries reads of what is written before."""
    index = tl.program_id(0)
    head = tl.program_id(1)
    keys: tl.constexpr = key_heads * key_dim
    features: tl.constexpr = 2 * keys + value_heads * value_dim
    count = tl.load(counts_ptr + index)
    i = tl.arange(0, stretch)
    own = i < count
    row = tl.load(starts_ptr + index).to(tl.int64) + i
    of_key = head // (value_heads // key_heads) * key_dim + tl.arange(0, key_dim)
    heads = rows_ptr + row[:, None] * features + of_key[None, :]
    q = tl.load(heads, mask=own[:, None], other=0.0)
    k = tl.load(heads + keys, mask=own[:, None], other=0.0)
    of_q, of_k = _to_unit(q) * (key_dim**-0.5), _to_unit(k)
    of_head = row * value_heads + head
    total = tl.cumsum(tl.load(log_decay_ptr + of_head, mask=own, other=0.0), axis=0)
    beta = tl.load(beta_ptr + of_head, mask=own, other=0.0)
    before = i[:, None] > i[None, :]
    between = tl.exp(tl.where(i[:, None] >= i[None, :], total[:, None] - total[None, :], 0.0)) * of_k[None, :]
    system = tl.where(before, tl.dot(k, k.T) * between * (beta * of_k)[:, None], 0.0)
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    # By forward substitution: powers of the system may be large, even where its inverse is not.
    for at in range(1, count):
        mine = i[:, None] == at
        factors = tl.sum(tl.where(mine, system, 0.0), axis=0)
        inverse -= tl.where(mine, tl.sum(factors[:, None] * inverse, axis=0)[None, :], 0.0)
    within = tl.where(i[:, None] >= i[None, :], tl.dot(q, k.T) * between * of_q[:, None], 0.0)
    place = solved_ptr + (index * value_heads + head).to(tl.int64) * 2 * stretch * stretch
    cell = i[:, None] * stretch + i[None, :]
    tl.store(place + cell, inverse)
    tl.store(place + stretch * stretch + cell, within)


@triton.jit  # type: ignore[untyped-decorator]
def _scan(  # type: ignore[no-untyped-def]
    rows_ptr,
    log_decay_ptr,
    beta_ptr,
    states_ptr,
    starts_ptr,
    counts_ptr,
    sources_ptr,
    slots_ptr,
    indptr_ptr,
    solved_ptr,
    out_ptr,
    slot_stride,
    key_heads: tl.constexpr,
    value_heads: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    values: tl.constexpr,
    stretch: tl.constexpr,
):
    """The stretches of a request, for some features of one value head."""
    head = tl.program_id(1)
    keys: tl.constexpr = key_heads * key_dim
    features: tl.constexpr = 2 * keys + value_heads * value_dim
    begin = tl.load(indptr_ptr + tl.program_id(2))
    end = tl.load(indptr_ptr + tl.program_id(2) + 1)
    k_feature = tl.arange(0, key_dim)
    v_feature = tl.program_id(0) * values + tl.arange(0, values)
    of_key = head // (value_heads // key_heads) * key_dim + k_feature
    i = tl.arange(0, stretch)
    cell = i[:, None] * stretch + i[None, :]
    place = head * key_dim * value_dim + k_feature[:, None] * value_dim + v_feature[None, :]
    source = tl.load(sources_ptr + begin).to(tl.int64)
    known = (k_feature[:, None] >= 0) & (source >= 0)
    state = tl.load(states_ptr + source * slot_stride + place, mask=known, other=0.0)
    for index in range(begin, end):
        own = i < tl.load(counts_ptr + index)
        row = tl.load(starts_ptr + index).to(tl.int64) + i
        heads = rows_ptr + row[:, None] * features + of_key[None, :]
        q = tl.load(heads, mask=own[:, None], other=0.0).to(tl.float32)
        k = tl.load(heads + keys, mask=own[:, None], other=0.0).to(tl.float32)
        of_q, of_k = _to_unit(q) * (key_dim**-0.5), _to_unit(k)
        of_values = row[:, None] * features + 2 * keys + head * value_dim + v_feature[None, :]
        v = tl.load(rows_ptr + of_values, mask=own[:, None], other=0.0).to(tl.float32)
        log_decay = tl.load(log_decay_ptr + row * value_heads + head, mask=own, other=0.0)
        beta = tl.load(beta_ptr + row * value_heads + head, mask=own, other=0.0)
        total = tl.cumsum(log_decay, axis=0)
        whole = tl.sum(log_decay, axis=0)
        since = tl.exp(total)
        solved = solved_ptr + (index * value_heads + head).to(tl.int64) * 2 * stretch * stretch
        inverse = tl.load(solved + cell)
        within = tl.load(solved + stretch * stretch + cell)
        read = tl.dot(k * (of_k * beta * since)[:, None], state, input_precision="tf32")
        new = tl.dot(inverse, v * beta[:, None] - read, input_precision="tf32")
        result = tl.dot(q * (of_q * since)[:, None], state, input_precision="tf32")
        result = tl.dot(within, new, result, input_precision="tf32")
        until = k * (of_k * tl.exp(whole - total))[:, None]
        state = tl.dot(until.T, new, state * tl.exp(whole), input_precision="tf32")
        target = out_ptr + (row * value_heads + head)[:, None] * value_dim + v_feature[None, :]
        tl.store(target, result.to(out_ptr.dtype.element_ty), mask=own[:, None])
        for which in tl.static_range(2):
            slot = tl.load(slots_ptr + 2 * index + which).to(tl.int64)
            if slot >= 0:
                tl.store(states_ptr + slot * slot_stride + place, state)
