"""Every kernel against the same thing said in torch."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def make_pool(page_size: int, head_dim: int = 64, heads: int = 3) -> torch.Tensor:
    return torch.randn(40, 3, 2, heads, page_size, head_dim, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("page_size", [1, 16])
def test_keys_and_values_go_where_the_slots_say_and_nowhere_else(page_size: int) -> None:
    from engine.kernels.store import store_kv

    pool = make_pool(page_size)
    expected = pool.clone()
    qkv = torch.randn(23, 15, 64, device="cuda", dtype=torch.bfloat16)
    k, v = qkv[:, 9:12], qkv[:, 12:15]
    slots = torch.randperm(40 * page_size)[:23].cuda()
    page, offset = slots // page_size, slots % page_size
    expected[page, 1, 0, :, offset] = k
    expected[page, 1, 1, :, offset] = v
    store_kv(k, v, pool[:, 1], slots)
    assert torch.equal(pool, expected)


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_gathered_copy_holds_the_filled_part_of_each_page_and_zeros(page_size: int) -> None:
    from engine.kernels.gather import gather_kv

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
@pytest.mark.parametrize(("rows", "columns"), [(6144, 4096), (4096, 14336), (64, 512), (4, 2048)])
def test_matvec_is_a_linear_layer(rows: int, columns: int, bias: bool) -> None:
    from engine.kernels.matvec import matvec, suits

    x = torch.randn(1, columns, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    added = torch.randn(rows, device="cuda", dtype=torch.bfloat16) if bias else None
    assert suits(x, weight)
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), added.double() if added is not None else None
    )
    result = matvec(x, weight, added).double()
    assert (result - expected).norm() / expected.norm() < 3e-3


@pytest.mark.parametrize("vocab", [500, 128256])
def test_likeliest_is_argmax_and_knows_rows_that_are_not_finite(vocab: int) -> None:
    from engine.kernels.likeliest import likeliest

    logits = torch.randn(9, vocab, device="cuda", dtype=torch.bfloat16)
    logits[1, vocab - 1] = 40
    logits[2, 3] = logits[2, vocab - 2] = 40
    for row, value in ((5, torch.nan), (6, torch.inf), (7, -torch.inf)):
        logits[row, vocab // 2] = value
    tokens, finite = likeliest(logits)
    assert finite.tolist() == [True] * 5 + [False] * 3 + [True]
    assert tokens[2] == 3
    sound = logits[finite]
    assert torch.equal(sound.gather(1, tokens[finite][:, None]), sound.amax(dim=1, keepdim=True))
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < vocab
