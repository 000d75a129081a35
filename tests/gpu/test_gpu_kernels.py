"""Every kernel against the same thing said in torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.core.batch.block_tables import BlockTables
from engine.core.batch.decode_plan import Decodes
from engine.model_config.parts.layer_options import Activation
from engine.model_config.parts.rope_spec import RopeSpec
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.ops.ops import Ops
from engine.modeling.layers.rope import rope_table


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def make_pool(page_size: int, head_dim: int = 64, heads: int = 3) -> torch.Tensor:
    return torch.randn(40, 3, 2, heads, page_size, head_dim, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize(("page_size", "head_dim"), [(1, 64), (16, 64), (16, 128)])
def test_rotated_keys_and_values_go_where_the_slots_say_and_nowhere_else(
    page_size: int, head_dim: int, rotary: bool, in_place: bool
) -> None:
    from engine.kernels.attention.rotate_store import rotate_store

    pool = make_pool(page_size, head_dim)
    expected = pool.clone()
    qkv = torch.randn(23, 15, head_dim, device="cuda", dtype=torch.bfloat16)
    q, k, v = qkv.clone().split([9, 3, 3], dim=1)
    positions = torch.randint(4096, (23,), device="cuda")
    table = rope_table(RopeSpec(), head_dim, 4096, torch.device("cuda"))
    if rotary:
        turned = Ops().rotation(table, positions, torch.float32)
        q, k = (turned.turn(heads.float()).bfloat16() for heads in (q, k))
    slots = torch.randperm(40 * page_size)[:23].cuda()
    page, offset = slots // page_size, slots % page_size
    expected[page, 1, 0, :, offset] = k
    expected[page, 1, 1, :, offset] = v
    queries = qkv[:, :9] if in_place else torch.empty_like(q)
    rotate_store(qkv, (table, positions) if rotary else None, pool[:, 1], slots, queries)
    # A rounding apart: products and sums are fused here and not there.
    torch.testing.assert_close(pool, expected, atol=1e-6, rtol=1e-2)
    torch.testing.assert_close(queries, q, atol=1e-6, rtol=1e-2)
    untouched = torch.ones(pool.shape[:2], dtype=torch.bool, device="cuda")
    untouched[:, 1] = False
    assert torch.equal(pool[untouched], expected[untouched])
    if not rotary:
        assert torch.equal(pool, expected)


def chat(count: int) -> list[int]:
    """Context lengths of chats."""
    return torch.empty(count).log_normal_(6.3, 0.7).clamp_(20, 4500).int().tolist()


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize(
    "contexts",
    [[1], [1000], [700] * 40, [700] * 150, chat(20), chat(200), [*chat(60), 9000], [*chat(6), 9000]],
    ids=["one token", "one", "even", "many, even", "few", "many", "many, one long", "few, one long"],
)
@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 8), (8, 8), (20, 1)])
def test_decodes_attend_to_their_contexts(
    contexts: list[int], page_size: int, heads: int, kv_heads: int
) -> None:
    """Planned for a step, and for a graph in which the batch leaves three rows empty."""
    from engine.kernels.attention.decode_attention import DecodeWorkspace
    from engine.mixers.attention.decode_planner import DecodePlanner
    from engine.mixers.attention.paged_decodes import DecodeAttention

    used = [-(-context // page_size) for context in contexts]
    pages = torch.randperm(sum(used) + 1)
    scratch = int(pages[-1])
    pool = torch.randn(len(pages), 2, kv_heads, page_size, 128, device="cuda", dtype=torch.bfloat16)
    lists = [part.tolist() for part in pages[:-1].split(used)]
    decodes = Decodes(np.array(contexts), BlockTables.of(lists))
    q = torch.randn(len(contexts) + 3, heads, 128, device="cuda", dtype=torch.bfloat16)
    expected = []
    for row, context in zip(q, contexts, strict=False):
        keys, values = pool[lists[len(expected)]].transpose(0, 1).transpose(2, 3).flatten(1, 2)[:, :context]
        attended = scaled_dot_product_attention(
            row.float().view(kv_heads, -1, 128), keys.float().transpose(0, 1), values.float().transpose(0, 1)
        )
        expected.append(attended.reshape(heads, 128))

    for table, context in zip(lists, contexts, strict=True):
        pool[table[-1], :, :, (context - 1) % page_size + 1 :] = torch.nan  # what lies behind may be anything
    pool[scratch] = 0
    multiprocessors = torch.cuda.get_device_properties(pool.device).multi_processor_count
    planner = DecodePlanner(multiprocessors=multiprocessors, num_kv_heads=kv_heads, page_size=page_size)
    parts = planner.most_parts(len(q))
    workspace = DecodeWorkspace(parts, len(q), heads, kv_heads, 128, pool.device)
    rule = LayerAttention(scale=128**-0.5)
    kernel = DecodeAttention(planner, workspace, rule, pool.device)
    out = torch.full_like(q, torch.nan)
    kernel.plan([decodes])
    kernel.run(0, q[: len(contexts)], pool, out[: len(contexts)], None)
    torch.testing.assert_close(out[: len(contexts)].float(), torch.stack(expected), atol=4e-3, rtol=2e-2)

    kernel.init_graphs(len(q), len(pages) + 3, 1)
    kernel.plan_for_graph([decodes.padded(3, scratch)])
    first = None
    for _ in range(5):  # who is done last, and merges, may be another every time
        again = torch.full_like(q, torch.nan)
        kernel.run(0, q, pool, again, None)
        assert first is None or torch.equal(again, first)
        first = again
    torch.testing.assert_close(again[: len(contexts)], out[: len(contexts)], atol=4e-3, rtol=2e-2)


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_gathered_copy_holds_the_filled_part_of_each_page_and_zeros(page_size: int) -> None:
    from engine.kernels.attention.gather import gather_kv

    pool = make_pool(page_size)
    pool[7] = torch.nan
    sources = torch.tensor([3, 7, 9, 0, 7], dtype=torch.int32, device="cuda")
    fills = torch.tensor([page_size, 0, (page_size + 1) // 2, page_size, 0], dtype=torch.int32, device="cuda")
    out = torch.full((2, 5 * page_size, 3, 64), torch.nan, device="cuda", dtype=torch.bfloat16)
    gather_kv(pool[:, 2], sources, fills, out)
    for index, (source, fill) in enumerate(zip(sources.tolist(), fills.tolist(), strict=True)):
        rows = out[:, index * page_size : (index + 1) * page_size]
        assert torch.equal(rows[:, :fill], pool[source, 2, :, :, :fill].transpose(1, 2))
        assert not rows[:, fill:].any()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(6144, 4096), (4096, 14336), (64, 512), (8, 2048)])
def test_matvec_is_a_linear_layer(rows: int, columns: int, bias: bool) -> None:
    from engine.kernels.matmul.matvec import matvec, suits

    x = torch.randn(1, columns, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    added = torch.randn(rows, device="cuda", dtype=torch.bfloat16) if bias else None
    assert suits(x, weight)
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), added.double() if added is not None else None
    )
    result = matvec(x, weight, added).double()
    assert (result - expected).norm() / expected.norm() < 3e-3


@pytest.mark.parametrize(("rows", "columns"), [(28672, 4096), (256, 14336), (8, 512), (16, 2048)])
def test_a_gated_matvec_is_the_first_half_of_an_mlp(rows: int, columns: int) -> None:
    from engine.kernels.matmul.matvec import gated_matvec, suits

    x = torch.randn(1, columns, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) / columns**0.5
    assert suits(x, weight)
    expected = Ops().gate(torch.nn.functional.linear(x.double(), weight.double()), Activation.SILU)
    result = gated_matvec(x, weight).double()
    assert (result - expected).norm() / expected.norm() < 6e-3


@pytest.mark.parametrize("tokens", [0, 1, 7, 300])
@pytest.mark.parametrize("size", [576, 3072, 4096, 5120])
def test_a_sum_is_normed_and_kept(size: int, tokens: int) -> None:
    from engine.kernels.add_norm import add_norm

    x, residual = torch.randn(2, tokens, size, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    normed, total = Ops().add_rms_norm(x.double(), residual.double(), weight.double(), 1e-5)
    add_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(x.double(), normed, atol=1e-6, rtol=8e-3)
    torch.testing.assert_close(residual.double(), total, atol=1e-6, rtol=8e-3)


@pytest.mark.parametrize("tokens", [0, 1, 7, 300])
@pytest.mark.parametrize("size", [1536, 2048, 14336])
@pytest.mark.parametrize("activation", Activation)
def test_an_mlp_is_gated(size: int, tokens: int, activation: Activation) -> None:
    from engine.kernels.gate import gate

    gate_up = torch.randn(tokens, 2 * size, device="cuda", dtype=torch.bfloat16)
    expected = Ops().gate(gate_up.double(), activation)
    torch.testing.assert_close(gate(gate_up, activation).double(), expected, atol=1e-6, rtol=8e-3)


@pytest.mark.parametrize("tokens", [1, 40])
def test_kernels_that_begin_early_wait_for_what_they_read(tokens: int) -> None:
    """A long chain of them gives what it gives with a halt after each."""
    from engine.kernels.add_norm import add_norm
    from engine.kernels.gate import gate
    from engine.kernels.matmul.matvec import gated_matvec, matvec

    size, depth = 2048, 60
    into = [torch.randn(2 * size, size, device="cuda", dtype=torch.bfloat16) / 45 for _ in range(depth)]
    back = [torch.randn(size, size, device="cuda", dtype=torch.bfloat16) / 45 for _ in range(depth)]
    weight = torch.ones(size, device="cuda", dtype=torch.bfloat16)
    start = torch.empty(tokens, size, device="cuda", dtype=torch.bfloat16)

    def run(halt: Callable[[], None]) -> torch.Tensor:
        x, residual = start.clone(), torch.zeros_like(start)
        for wide, narrow in zip(into, back, strict=True):
            add_norm(x, residual, weight, 1e-5)
            halt()
            inner = (
                gated_matvec(x, wide)
                if tokens == 1
                else gate(torch.nn.functional.linear(x, wide), Activation.SILU)
            )
            halt()
            x = matvec(inner, narrow, None) if tokens == 1 else torch.nn.functional.linear(inner, narrow)
            halt()
        return x + residual

    run(lambda: None)  # loads every kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(lambda: None)
    for _ in range(20):
        start.normal_()
        graph.replay()
        assert torch.equal(result, run(torch.cuda.synchronize))


@pytest.mark.parametrize("vocab", [500, 128256, 300000])
def test_greedy_sample_is_argmax_and_reports_rows_that_are_not_finite(vocab: int) -> None:
    from engine.kernels.sampling.argmax import greedy_sample

    logits = torch.randn(9, vocab, device="cuda", dtype=torch.bfloat16)
    logits[1, vocab - 1] = 40
    logits[2, 3] = logits[2, vocab - 2] = 40
    for row, value in ((5, torch.nan), (6, torch.inf), (7, -torch.inf)):
        logits[row, vocab // 2] = value
    tokens, finite = greedy_sample(logits)
    assert finite.tolist() == [True] * 5 + [False] * 3 + [True]
    assert tokens[2] == 3
    sound = logits[finite]
    assert torch.equal(sound.gather(1, tokens[finite][:, None]), sound.amax(dim=1, keepdim=True))
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < vocab
    assert [int(greedy_sample(row)[0]) for row in logits[1:3].split(1)] == [vocab - 1, 3]  # in other parts
    many = torch.rand(300, vocab, device="cuda").argsort(dim=1).float()  # no two are equal
    assert torch.equal(greedy_sample(many)[0], many.argmax(dim=1))
