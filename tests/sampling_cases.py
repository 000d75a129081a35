"""Rows that ask for all kinds of sampling, and what transformers makes of the same parameters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.core.plan import Chunk
from engine.core.request import PENDING, Request
from engine.core.sampling_params import SamplingParams
from engine.grammar.grammar import Grammar, GrammarKind
from engine.sampling.token_masks import TokenMasks


def any_sampling(rng: random.Random, vocab: int) -> SamplingParams:
    """Every parameter is off about half of the time."""
    return SamplingParams(
        max_tokens=100,
        min_tokens=rng.choice([0, 0, 2]),
        temperature=rng.choice([0.0, 0.6, 1.0, 1.0, 1.7]),
        top_k=rng.choice([0, 0, 0, 1, 5, 50, vocab // 3]),
        top_p=rng.choice([1.0, 1.0, 0.95, 0.5, 0.1]),
        min_p=rng.choice([0.0, 0.0, 0.2, 0.01]),
        seed=rng.getrandbits(64),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        presence_penalty=rng.choice([0.0, 0.0, 0.5]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.3]),
        logprobs=rng.choice([None, None, 0, 5, 20]),
        logit_bias=rng.choice([(), (), ((3, 2.5), (vocab - 1, -100.0))]),
    )


def chunks_of(samplings: Sequence[SamplingParams], vocab: int, seed: int = 0) -> list[Chunk]:
    """One row for each, of prompts of their own, which have no output yet."""
    rng = random.Random(seed)
    chunks = []
    for slot, sampling in enumerate(samplings):
        prompt = [rng.randrange(vocab) for _ in range(rng.randrange(1, 40))]
        request = Request(id=seed * 1000 + slot, prompt=prompt, sampling=sampling, slot=slot)
        chunks.append(Chunk(request, slot, len(prompt) - 1, 1, 0))
    return chunks


def constrained(samplings: Sequence[SamplingParams]) -> list[SamplingParams]:
    """Two of three with a grammar, for `masks_for`."""
    grammar = Grammar(GrammarKind.REGEX, "any")
    return [replace(s, grammar=grammar, min_tokens=0) if i % 3 else s for i, s in enumerate(samplings)]


def masks_for(chunks: Sequence[Chunk], vocab: int, rng: random.Random) -> TokenMasks:
    """Masks of the rows with a grammar: they allow one token, a few, or half of all."""
    rows = [row for row, chunk in enumerate(chunks) if chunk.request.sampling.grammar is not None]
    allowed = np.zeros((len(rows), -(-vocab // 32) * 32), dtype=np.bool_)
    for mask in allowed:
        mask[rng.sample(range(vocab), rng.choice([1, 2, 5, vocab // 2]))] = True
    return TokenMasks(rows, np.packbits(allowed, axis=1, bitorder="little").view(np.int32))


def say_pending(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The rows of the next step, planned before it is known what this one sampled."""
    following = []
    for chunk in chunks:
        assert chunk.output_index is not None
        chunk.request.output.append(PENDING)
        following.append(chunk._replace(start=chunk.start + 1, output_index=chunk.output_index + 1))
    return following


def warped(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Probabilities [vocab], float64, that transformers gives to tokens with these `logits` [vocab]."""
    ids = torch.zeros(1, 1, dtype=torch.int64)
    scores = TemperatureLogitsWarper(sampling.temperature)(ids, logits[None].double().cpu())
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(ids, scores)
    if sampling.min_p:
        scores = MinPLogitsWarper(sampling.min_p)(ids, scores)
    if sampling.top_p < 1.0:
        scores = TopPLogitsWarper(sampling.top_p)(ids, scores)
    return scores.softmax(dim=-1)[0]


def assert_follows(expected: torch.Tensor, tokens: torch.Tensor) -> None:
    """Chi-square of `tokens` against probabilities [vocab]: exceeded once in some 30,000 times."""
    assert bool((expected[tokens.cpu()] > 0).all()), "a token was drawn that should have been cut"
    counts = torch.bincount(tokens.cpu(), minlength=len(expected)).double()
    likely = expected * len(tokens) >= 5
    wanted = torch.cat([expected[likely], expected[~likely].sum()[None]]) * len(tokens)
    seen = torch.cat([counts[likely], counts[~likely].sum()[None]])
    wanted, seen = wanted[wanted > 0.5], seen[wanted > 0.5]
    freedom = len(wanted) - 1
    if freedom == 0:
        return
    chi_square = float(((seen - wanted) ** 2 / wanted).sum())
    # Wilson and Hilferty: the cube root of chi-square over its freedom is nearly normal.
    spread = (2 / (9 * freedom)) ** 0.5
    deviations = ((chi_square / freedom) ** (1 / 3) - (1 - spread**2)) / spread
    assert deviations < 4.0, f"chi-square {chi_square:.1f} with {freedom} degrees of freedom"
