"""The kernels for gated delta nets, interpreted, against the same in plain torch."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.core.batch.batch import Batch, StateBatch
from engine.core.request_state import NO_SLOT
from engine.kv.cache.state_pool import StatePool
from engine.mixers.recurrence.torch_recurrence import TorchRecurrence
from engine.model_config.parts.recurrent_spec import RecurrentSpec
from engine.modeling.layers.recurrent import RecurrentWeights

interprets = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not interprets, reason="needs triton, and TRITON_INTERPRET=1")

SPEC = RecurrentSpec(layers=frozenset({0, 1}), key_heads=2, value_heads=4, key_dim=16, value_dim=32, kernel=4)
SLOTS = 9


def pool(seed: int) -> StatePool:
    size = -(-SPEC.state_bytes(4) // 64) * 64
    made = StatePool(torch.zeros(SLOTS + 1, size, dtype=torch.uint8), SPEC, torch.float32)
    torch.manual_seed(seed)
    for layer in range(2):
        for part in made.layer(layer):
            part.copy_(torch.randn(part.shape))
    return made


def batch_of(requests: list[tuple[int, ...]]) -> Batch:
    """Batch of requests, each given by its rows, the slots read and written, the slot saved and the rows
    until then; and as `StateBatch.runs` has it, if that is not 1.
    """
    lengths, *states = np.array([(*r, 1)[:6] for r in requests], dtype=np.int64).T
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    unused: Any = None
    return Batch(
        rows=torch.zeros((2, int(indptr[-1])), dtype=torch.int64),
        num_chunks=int((lengths > 1).sum()),
        query_indptr=indptr,
        context_lens=lengths,
        groups=[],
        sample_rows=unused,
        sample_slots=unused,
        scored_rows=unused,
        pending_rows=unused,
        pending_slots=unused,
        states=StateBatch(*states),
    )


def inputs(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, RecurrentWeights]:
    """A view of a larger row, as a merged projection has it; log decays, rates, convolution."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(rows, SPEC.mixed_size + 8, generator=generator)[:, : SPEC.mixed_size]
    decays = -torch.rand(rows, SPEC.value_heads, generator=generator) * 0.3
    beta = torch.rand(rows, SPEC.value_heads, generator=generator)
    kernel = torch.randn(SPEC.mixed_size, 1, SPEC.kernel, generator=generator)
    return mixed, decays, beta, RecurrentWeights(kernel)


N = NO_SLOT


def verified(rows: int, source: int, slot: int) -> list[tuple[int, ...]]:
    """A verify chunk."""
    return [(1, source, slot, N, 0, 0 if row else rows) for row in range(rows)]


def assert_alike(ours: StatePool, theirs: StatePool) -> None:
    for layer in range(2):
        for mine, wanted in zip(ours.layer(layer), theirs.layer(layer), strict=True):
            torch.testing.assert_close(mine[:SLOTS], wanted[:SLOTS], atol=2e-5, rtol=1e-4)


CASES: dict[str, list[tuple[int, ...]]] = {
    "decodes": [(1, 3, 3, N, 0), (1, N, 5, N, 0), (1, 1, 2, N, 0)],
    "a prompt": [(150, N, 4, N, 0)],
    "a chunk behind another": [(70, 4, 4, N, 0)],
    "fewer rows than the convolution sees": [(2, 4, 4, N, 0), (3, N, 1, N, 0)],
    "checkpoints": [(100, 2, 3, 6, 80), (64, 4, 4, 7, 64), (2, 5, 5, 8, 1)],
    "chunks and decodes": [(65, 1, 1, 2, 64), (5, N, 3, N, 0), (1, 4, 4, N, 0), (1, N, 5, N, 0)],
    "verified": [*verified(2, 3, 3), *verified(5, N, 1)],
    "verified beside others": [(5, N, 3, N, 0), *verified(6, 4, 4), (1, 1, 1, N, 0), *verified(3, 8, 2)],
}


@interpreted
@pytest.mark.parametrize("requests", CASES.values(), ids=CASES)
def test_the_kernels_compute_what_plain_torch_does(requests: list[tuple[int, ...]]) -> None:
    from engine.mixers.recurrence.triton_recurrence import TritonRecurrence

    ours, theirs, batch = pool(1), pool(1), batch_of(requests)
    kernels, oracle = TritonRecurrence(ours, max_verified=16), TorchRecurrence(theirs)
    kernels.prepare(batch)
    oracle.prepare(batch)
    for layer in range(2):
        given = inputs(len(batch.input_ids), seed=layer)
        expected = oracle.recur(layer, *given)
        torch.testing.assert_close(kernels.recur(layer, *given), expected, atol=2e-5, rtol=1e-4)
        assert_alike(ours, theirs)
    if any(len(r) > 5 for r in requests):
        for recurrence in (kernels, oracle):
            recurrence.keep(torch.tensor([1, 2]))
        assert_alike(ours, theirs)


def test_the_state_behind_right_drafts_is_the_one_that_decodes_leave() -> None:
    decoded, drafted = pool(1), pool(1)
    given = [inputs(5, seed=layer) for layer in range(2)]
    recurrence, whole = TorchRecurrence(drafted), batch_of([*verified(4, 6, 6), (1, N, 2, N, 0)])
    recurrence.prepare(whole)
    together = [recurrence.recur(layer, *given[layer]) for layer in range(2)]
    recurrence.keep(torch.tensor([2]))
    singly = TorchRecurrence(decoded)
    own, other = (1, 6, 6, N, 0), (1, N, 2, N, 0)
    for row, request in [(0, own), (1, own), (2, own), (4, other)]:
        singly.prepare(batch_of([request]))
        for layer, (mixed, decays, beta, weights) in enumerate(given):
            part = slice(row, row + 1)
            out = singly.recur(layer, mixed[part], decays[part], beta[part], weights)
            torch.testing.assert_close(out[0], together[layer][row])
    assert_alike(drafted, decoded)


@interpreted
def test_equal_tokens_without_decay_do_not_overflow() -> None:
    """Powers of the system that is solved have entries up to 10^17, its inverse has none above 1."""
    from engine.mixers.recurrence.triton_recurrence import TritonRecurrence

    batch = batch_of([(64, N, 1, N, 0)])
    mixed, decays, beta, weights = inputs(64)
    given = mixed[:1].expand(64, -1).contiguous(), decays * 0, beta * 0 + 1, weights
    results = []
    for recurrence in (TritonRecurrence(pool(1)), TorchRecurrence(pool(1))):
        recurrence.prepare(batch)
        results.append(recurrence.recur(0, *given))
    torch.testing.assert_close(*results, atol=2e-5, rtol=1e-4)


@interpreted
def test_a_padded_graph_step_changes_the_slots_of_its_requests_alone() -> None:
    from engine.mixers.recurrence.triton_recurrence import TritonRecurrence

    ours, theirs = pool(1), pool(1)
    kernels, oracle = TritonRecurrence(ours, max_verified=8), TorchRecurrence(theirs)
    batch = batch_of([(1, 3, 3, N, 0), *verified(3, 1, 7), (1, N, 5, N, 0)])
    kernels.init_graphs(8)
    kernels.prepare_capture(8)
    kernels.prepare_replay(batch, 8)
    oracle.prepare(batch)
    for layer in range(2):
        mixed, decays, beta, weights = inputs(8, seed=layer)
        expected = oracle.recur(layer, mixed[:5], decays[:5], beta[:5], weights)
        result = kernels.recur(layer, mixed, decays, beta, weights)
        torch.testing.assert_close(result[:5], expected, atol=2e-5, rtol=1e-4)
    assert_alike(ours, theirs)
    for recurrence in (kernels, oracle):
        recurrence.keep(torch.tensor([1]))
    assert_alike(ours, theirs)


@interpreted
def test_rates_and_gated_norms_equal_those_of_plain_torch() -> None:
    from engine.kernels.delta_net.delta_gates import delta_rates, gated_norm
    from engine.modeling.layers.ops.ops import Ops

    heads, tokens = 6, 5
    rates = torch.randn(tokens, 2 * heads) * 20
    parameters = torch.randn(heads), torch.randn(heads)
    for mine, wanted in zip(
        delta_rates(rates, *parameters), Ops().delta_rates(rates, *parameters), strict=True
    ):
        torch.testing.assert_close(mine, wanted, atol=1e-6, rtol=1e-5)
    given = torch.randn(tokens, heads, 24)
    gate = torch.randn(tokens, heads * 24 + 7)[:, : heads * 24].unflatten(1, (heads, 24))
    weight = torch.randn(24)
    torch.testing.assert_close(
        gated_norm(given, gate, weight, 1e-6), Ops().gated_norm(given, gate, weight, 1e-6)
    )


@pytest.mark.skipif(
    find_spec("triton") is None or interprets, reason="needs triton, without TRITON_INTERPRET"
)
@pytest.mark.parametrize("keeps", [True, False])
def test_the_kernels_of_single_rows_compile_for_a_gpu(keeps: bool) -> None:
    """The interpreter accepts more than the compiler, which needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget

    from engine.kernels.delta_net import causal_conv, delta_rule

    heads = {"key_heads": 2, "value_heads": 4, "key_dim": 64, "value_dim": 64, "values": 32}
    convolution = {"features": 512, "block": 128}
    for kernel, constants in (
        (causal_conv._convolve_decodes, {"keeps": keeps, "taps": 4, **convolution}),
        (causal_conv._keep_windows, {"size": 3, "columns": 4, **convolution}),
        (delta_rule._decode, {"keeps": keeps, "reads": keeps, **heads}),
    ):
        names = kernel.arg_names
        types = {name: "*bf16" if name.endswith("_ptr") else "i32" for name in names}
        integers = ("sources_ptr", "slots_ptr", "counts_ptr", "places_ptr", "firsts_ptr", "ends_ptr")
        types |= {name: "*i32" for name in integers if name in types}
        floats = ("log_decay_ptr", "beta_ptr", "states_ptr", "kept_decay_ptr", "kept_beta_ptr")
        types |= {name: "*fp32" for name in floats if name in types}
        types |= dict.fromkeys(constants, "constexpr")
        places = {(names.index(name),): value for name, value in constants.items()}
        source = triton.compiler.ASTSource(fn=kernel, signature=types, constexprs=places)
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
