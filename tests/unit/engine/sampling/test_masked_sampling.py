"""Choosing tokens under the masks of grammars, by every kind of sampling."""

from __future__ import annotations

import os
import random

import pytest
import torch

from engine.core.plan import Chunk, ChunkKind
from engine.sampling.cpu import TorchSampling
from tests.sampling_cases import any_sampling, chunks_of, constrained, masks_for, say_pending

ROWS = 12


def sampling_on_cpu(vocab: int) -> TorchSampling:
    return TorchSampling(vocab_size=vocab, eos_token_ids=[2], max_requests=ROWS, processed_logprobs=False)


@pytest.mark.parametrize("vocab", [61, 20_011])
def test_a_masked_row_gets_an_allowed_token_and_the_others_what_they_would_get(vocab: int) -> None:
    rng = random.Random(vocab)
    masked, plain = sampling_on_cpu(vocab), sampling_on_cpu(vocab)
    for seed in range(20):
        chunks = chunks_of(constrained([any_sampling(rng, vocab) for _ in range(ROWS)]), vocab, seed)
        logits, masks = torch.randn(ROWS, vocab), masks_for(chunks, vocab, rng)
        sampled = masked.sample(logits.clone(), chunks, masks)
        assert bool(sampled.finite.all())
        for row, words in zip(masks.rows, masks.words, strict=True):
            token = int(sampled.tokens[row])
            assert words[token // 32] >> (token % 32) & 1
        free = [row for row in range(ROWS) if row not in masks.rows]
        assert sampled.tokens[free].tolist() == plain.sample(logits, chunks).tokens[free].tolist()


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1")
@pytest.mark.parametrize("vocab", [61, 9000])
def test_the_kernels_interpreted_choose_what_a_cpu_chooses(vocab: int) -> None:
    from engine.sampling.fused import FusedSampling

    rng = random.Random(vocab)
    chunks = chunks_of(constrained([any_sampling(rng, vocab) for _ in range(ROWS)]), vocab)
    fused = FusedSampling(vocab_size=vocab, eos_token_ids=[2], max_requests=ROWS, device=torch.device("cpu"))
    on_cpu = sampling_on_cpu(vocab)
    for _ in range(3):
        logits, masks = torch.randn(ROWS, vocab), masks_for(chunks, vocab, rng)
        got, expected = fused.sample(logits.clone(), chunks, masks), on_cpu.sample(logits, chunks, masks)
        assert got.tokens.tolist() == expected.tokens.tolist()
        assert bool(got.finite.all())
        rng.shuffle(chunks)
        chunks = say_pending(chunks)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1")
@pytest.mark.parametrize("vocab", [61, 9000])
def test_the_kernels_interpreted_choose_behind_drafts_what_a_cpu_chooses(vocab: int) -> None:
    """Under penalties and masks, where rows of one request differ; and in decodes after that."""
    from engine.sampling.fused import FusedSampling

    rng = random.Random(vocab)
    fused = FusedSampling(
        vocab_size=vocab,
        eos_token_ids=[2],
        max_requests=ROWS,
        max_rows=4 * ROWS,
        max_edited_drafts=3 * ROWS,
        device=torch.device("cpu"),
    )
    on_cpu = sampling_on_cpu(vocab)
    plain = chunks_of(constrained([any_sampling(rng, vocab) for _ in range(ROWS)]), vocab)
    right = 0
    for step in range(8):
        chunks = [_with_draft(chunk, vocab, rng) if step % 3 else chunk for chunk in plain]
        rows = [row for chunk in chunks for row in chunk.rows()]
        logits, masks = torch.randn(len(rows), vocab), masks_for(rows, vocab, rng)
        logits[:, 7] += 4.0  # so that drafts of it are right now and then
        got, expected = fused.sample(logits.clone(), rows, masks), on_cpu.sample(logits, rows, masks)
        assert got.tokens.tolist() == expected.tokens.tolist()
        tokens = iter(got.tokens.tolist())
        plain = []
        for chunk in chunks:
            sampled = [next(tokens) for _ in range(chunk.length)]
            accepted = next(
                (k for k, token in enumerate(chunk.draft) if token != sampled[k]), len(chunk.draft)
            )
            right += accepted
            output = chunk.request.output
            output += sampled[: accepted + 1]
            start = len(chunk.request.prompt) + len(output) - 1
            plain.append(Chunk(chunk.request, chunk.slot, start, 1, len(output)))
    assert right


def _with_draft(chunk: Chunk, vocab: int, rng: random.Random) -> Chunk:
    draft = tuple(rng.choice([7, rng.randrange(vocab)]) for _ in range(rng.choice([0, 1, 3, 3])))
    if not draft:
        return chunk
    return chunk._replace(length=1 + len(draft), kind=ChunkKind.VERIFY, draft=draft)
