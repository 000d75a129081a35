"""The sampling kernels against the CPU's draws, and against what transformers makes of the parameters."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.core.sampling_params import SamplingParams
from engine.sampling.sampler import Sampler
from tests.sampling_cases import (
    any_sampling,
    assert_follows,
    chunks_of,
    constrained,
    masks_for,
    say_pending,
    warped,
)

CUDA = torch.device("cuda")
CPU = torch.device("cpu")
VOCAB, LARGE_VOCAB = 32_001, 128_256
DRAWN = SamplingParams(max_tokens=100, temperature=1.0)
CUTS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6, "top_p": 0.95},
    {"top_p": 0.3},
    {"top_k": 7},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "temperature": 1.5},
    {"top_p": 0.9, "min_p": 0.1},
]


def sampler(vocab: int, requests: int, device: torch.device = CUDA) -> Sampler:
    return Sampler(vocab_size=vocab, eos_token_ids=[2], max_requests=requests, device=device)


def random_logits(rows: int, vocab: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize(  # kernels are compiled for each vocabulary and dtype
    ("vocab", "dtype", "spread"),
    [
        (61, torch.float32, 1.0),
        (8192, torch.bfloat16, 3.0),
        (VOCAB, torch.float32, 0.1),
        (LARGE_VOCAB, torch.float32, 1.0),
        (151936, torch.bfloat16, 4.0),
    ],
)
def test_a_gpu_draws_what_a_cpu_draws(vocab: int, spread: float, dtype: torch.dtype) -> None:
    """Penalties count what either of them drew before: one difference would lead to others."""
    rng = random.Random(vocab)
    chunks = chunks_of([any_sampling(rng, vocab) for _ in range(48)], vocab)
    on_gpu, on_cpu = sampler(vocab, 48), sampler(vocab, 48, CPU)
    different = 0
    for step in range(4):
        logits = random_logits(len(chunks), vocab, step, spread).to(dtype)
        got, expected = on_gpu.sample(logits.cuda(), chunks), on_cpu.sample(logits.clone(), chunks)
        different += int((got.tokens.cpu() != expected.tokens).sum())
        assert bool(got.finite.all())
        assert got.logprobs is not None
        assert expected.logprobs is not None
        asked = [c.request.sampling for c in chunks if c.request.sampling.logprobs is not None]
        for mine, theirs, params in zip(
            got.logprobs.to_tokens(asked), expected.logprobs.to_tokens(asked), asked, strict=True
        ):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert mine.rank == theirs.rank
            assert [value for _, value in mine.top] == pytest.approx([v for _, v in theirs.top], abs=1e-4)
            assert len(dict(mine.top)) == params.logprobs
        rng.shuffle(chunks)
        chunks = say_pending(chunks)
    assert different == 0


@pytest.mark.parametrize("vocab", [61, LARGE_VOCAB])
def test_a_gpu_draws_what_a_cpu_draws_among_the_tokens_that_grammars_allow(vocab: int) -> None:
    rng = random.Random(vocab)
    chunks = chunks_of(constrained([any_sampling(rng, vocab) for _ in range(48)]), vocab)
    on_gpu, on_cpu = sampler(vocab, 48), sampler(vocab, 48, CPU)
    for step in range(3):
        logits, masks = random_logits(len(chunks), vocab, step), masks_for(chunks, vocab, rng)
        got = on_gpu.sample(logits.cuda(), chunks, masks)
        assert got.tokens.cpu().tolist() == on_cpu.sample(logits, chunks, masks).tokens.tolist()
        assert bool(got.finite.all())
        rng.shuffle(chunks)
        chunks = say_pending(chunks)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_draws_follow_the_warpers_of_transformers(cut: dict[str, Any]) -> None:
    vocab, rows = VOCAB, 256
    sampling = replace(DRAWN, **cut)
    logits = random_logits(1, vocab, 3, 2.5)
    expected = warped(logits[0], sampling)
    kernel = sampler(vocab, rows)
    tokens = []
    for seed in range(16):
        chunks = chunks_of([replace(sampling, seed=seed * rows + i) for i in range(rows)], vocab, seed)
        tokens.append(kernel.sample(logits.cuda().expand(rows, -1).contiguous(), chunks).tokens)
    assert_follows(expected, torch.cat(tokens))


def test_a_row_gets_the_same_token_in_any_company() -> None:
    vocab = LARGE_VOCAB
    rng = random.Random(5)
    chunks = chunks_of([any_sampling(rng, vocab) for _ in range(40)], vocab)
    logits = random_logits(40, vocab, 5).cuda()
    together = sampler(vocab, 40).sample(logits, chunks).tokens.tolist()
    fresh = sampler(vocab, 40)
    assert [
        int(fresh.sample(logits[i : i + 1], [chunk]).tokens) for i, chunk in enumerate(chunks)
    ] == together


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_are_reported_and_affect_no_other_row(bad: float) -> None:
    vocab = VOCAB
    rng = random.Random(6)
    chunks = chunks_of([any_sampling(rng, vocab) for _ in range(24)], vocab)
    logits = random_logits(24, vocab).cuda()
    sound = sampler(vocab, 24).sample(logits, chunks)
    broken = logits.clone()
    broken[::3, 20_000] = bad
    broken[3] = bad
    got = sampler(vocab, 24).sample(broken, chunks)
    assert got.finite.tolist() == [i % 3 != 0 for i in range(24)]
    assert torch.equal(got.tokens[got.finite], sound.tokens[got.finite])
    assert 0 <= int(got.tokens.min()) <= int(got.tokens.max()) < vocab


def test_equally_likely_tokens_stay_together() -> None:
    """More of them than a list holds, so that whole rows are read."""
    vocab = LARGE_VOCAB
    logits = torch.zeros(64, vocab, device=CUDA)
    logits[:, 10_000:30_000] = 1.0
    for cut in ({"top_k": 5}, {"top_p": 1e-6}, {"top_k": 5, "top_p": 0.5}, {"min_p": 0.5}):
        chunks = chunks_of([replace(DRAWN, seed=i, **cut) for i in range(64)], vocab)  # type: ignore[arg-type]
        tokens = sampler(vocab, 64).sample(logits, chunks).tokens
        assert int(tokens.min()) >= 10_000
        assert int(tokens.max()) < 30_000
        assert len(tokens.unique()) > 32
    greedy = chunks_of([replace(DRAWN, top_k=1)] * 3, vocab)
    assert sampler(vocab, 3).sample(logits[:3], greedy).tokens.tolist() == [10_000] * 3


def test_a_small_share_of_a_flat_row_is_its_likeliest_tokens() -> None:
    vocab = LARGE_VOCAB
    logits = torch.linspace(0.0, 0.01, vocab)[
        torch.randperm(vocab, generator=torch.Generator().manual_seed(0))
    ]
    best = set(logits.topk(int(vocab * 0.01) + 20).indices.tolist())
    chunks = chunks_of([replace(DRAWN, seed=i, top_p=0.01) for i in range(128)], vocab)
    tokens = sampler(vocab, 128).sample(logits.cuda().expand(128, -1).contiguous(), chunks).tokens
    assert set(tokens.tolist()) <= best
    assert len(tokens.unique()) > 100


def test_after_a_warm_up_nothing_is_compiled_allocated_for_good_or_waited_for(compiled: list[str]) -> None:
    vocab = 32_003
    kernel = sampler(vocab, 64)
    kernel.profile_run(random_logits(64, vocab).cuda().bfloat16())
    rng = random.Random(7)
    chunks = chunks_of([any_sampling(rng, vocab) for _ in range(64)], vocab)
    logits = random_logits(64, vocab).cuda().bfloat16()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    compiled.clear()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for count in (64, 33, 16, 2, 1):
            sampled = kernel.sample(logits[:count], chunks[:count])
            chunks = say_pending(chunks)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    del sampled
    assert compiled == []
    assert torch.cuda.memory_allocated() == before
