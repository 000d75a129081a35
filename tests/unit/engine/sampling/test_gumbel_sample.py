"""Draws against a brute-force reading of what the parameters mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.sampling_params import SamplingParams
from engine.sampling.gumbel_sample import gumbel_sample, gumbel_sample_truncated
from engine.sampling.noise import hashed, keys
from tests.sampling_cases import assert_follows as assert_follows_warpers
from tests.sampling_cases import warped

DRAWS = 4000
CUTS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6, "top_p": 0.95},
    {"top_p": 0.3},
    {"top_k": 7},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "temperature": 1.5},
    {"top_p": 0.9, "min_p": 0.1},
]


def nucleus(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """Tokens that may be drawn, most likely first, and their renormalised probabilities: the slow way."""
    scaled = logits.astype(np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = [int(i) for i in np.argsort(-probs, kind="stable")][:top_k]
    order = [i for i in order if probs[i] >= min_p * probs.max()]
    rest = sum(probs[i] for i in order)
    kept: list[int] = []
    for i in order:
        if sum(probs[j] for j in kept) >= top_p * rest:
            break
        kept.append(i)
    mass = sum(probs[i] for i in kept)
    return {i: probs[i] / mass for i in kept}


def fresh_keys(n: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(keys(np.full(n, seed), np.arange(n)))


def assert_follows(expected: dict[int, float], tokens: torch.Tensor) -> None:
    """No token but the expected ones, each as often as it should: within 5 standard deviations."""
    ids, counts = tokens.unique(return_counts=True)
    got = {int(i): int(c) / len(tokens) for i, c in zip(ids, counts, strict=True)}
    assert set(got) <= set(expected)
    for token, probability in expected.items():
        deviation = (probability * (1 - probability) / len(tokens)) ** 0.5
        assert got.get(token, 0.0) == pytest.approx(probability, abs=5 * deviation + 1e-3)


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.2, 3.0))
def test_a_plain_draw_follows_the_softmax(seed: int, temperature: float) -> None:
    logits = torch.randn(24, generator=torch.Generator().manual_seed(seed)) * 2
    tokens = gumbel_sample(
        logits.expand(DRAWS, -1), torch.full((DRAWS,), temperature), fresh_keys(DRAWS, seed)
    )
    assert_follows(dict(enumerate((logits / temperature).softmax(-1).tolist())), tokens)


@given(seed=st.integers(0, 10_000), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_cuts_that_cut_nothing_change_no_draw(seed: int, temperature: float) -> None:
    logits = torch.randn(16, 100, generator=torch.Generator().manual_seed(seed)) * 3
    row, keys = torch.ones(16), fresh_keys(16, seed)
    whole = gumbel_sample(logits, row * temperature, keys)
    off = torch.full((16,), 100)
    assert gumbel_sample_truncated(
        logits, row * temperature, keys, top_k=off, top_p=row, min_p=row * 0
    ).equal(whole)


def test_rounding_hardly_ever_changes_a_draw() -> None:
    """What differs between batches is the last bits of the logits. A vocabulary has tens of thousands of
    borders between tokens; one of them moves past a given draw about once in a hundred thousand."""
    logits = torch.randn(500, 4096, generator=torch.Generator().manual_seed(0)) * 3
    nudged = logits * (1 + 1e-6 * torch.randn(500, 4096, generator=torch.Generator().manual_seed(1)))
    row, keys = torch.ones(500), fresh_keys(500)
    assert gumbel_sample(nudged, row, keys).equal(gumbel_sample(logits, row, keys))


def slow_draw(row: np.ndarray, cut: dict[int, float], key: torch.Tensor, temperature: float) -> int:
    """All noise in float64, and the best of what is kept."""
    kept = np.array(sorted(cut))
    bits = hashed(key.numpy()[None], kept)[0]
    uniform = ((bits ^ np.uint32(1 << 31)).astype(np.float64) + 0.5) / 2**32
    return int(kept[np.argmax(row[kept].astype(np.float64) / temperature - np.log(-np.log(uniform)))])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([7, 64, 1000, 5003]),
    spread=st.sampled_from([0.2, 2.0, 8.0]),
    cuts=st.lists(
        st.tuples(
            st.sampled_from([0.3, 1.0, 5.0]),
            st.sampled_from([1, 3, 40, 10_000]),
            st.sampled_from([0.1, 0.5, 0.9, 1.0]),
            st.sampled_from([0.0, 0.01, 0.3]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_draws_are_those_of_all_noise_and_a_sorted_vocabulary(
    seed: int, vocab: int, spread: float, cuts: list[tuple[float, int, float, float]]
) -> None:
    """Few tokens get any noise, and few cuts are searched at all: what is drawn is the same."""
    logits = torch.randn(len(cuts), vocab, generator=torch.Generator().manual_seed(seed)) * spread
    cuts = [(t, min(k, vocab), p, m) for t, k, p, m in cuts]
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*cuts, strict=True))
    keys = fresh_keys(len(cuts), seed)
    drawn = gumbel_sample_truncated(logits, temperature, keys, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = [
        slow_draw(row, nucleus(row, *cut), key, cut[0])
        for row, cut, key in zip(logits.numpy(), cuts, keys, strict=True)
    ]
    assert drawn.tolist() == expected


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_draws_follow_the_warpers_of_transformers(cut: dict[str, Any]) -> None:
    """Chi-square over a vocabulary that is no multiple of anything."""
    sampling = SamplingParams(max_tokens=1, **({"temperature": 1.0} | cut))
    logits = torch.randn(1, 509, generator=torch.Generator().manual_seed(3)) * 2
    draws, one = 5_000, torch.ones(5_000)
    tokens = gumbel_sample_truncated(
        logits.expand(draws, -1),
        one * sampling.temperature,
        fresh_keys(draws, 9),
        top_k=torch.full((draws,), sampling.top_k or 509),
        top_p=one * sampling.top_p,
        min_p=one * sampling.min_p,
    )
    assert_follows_warpers(warped(logits[0], sampling), tokens)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(3, 1.0, 0.0), (9, 0.01, 0.0), (9, 1.0, 0.9), (2, 0.5, 0.0)]
)
def test_equally_likely_tokens_stay_together(top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.tensor([1.0, 5.0, 5.0, 5.0, 5.0, 5.0, 2.0, 4.0, 0.0]).expand(400, -1)
    one = torch.ones(400)
    drawn = gumbel_sample_truncated(
        logits, one, fresh_keys(400), top_k=torch.full((400,), top_k), top_p=one * top_p, min_p=one * min_p
    )
    assert set(drawn.tolist()) == {1, 2, 3, 4, 5}


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]]).expand(1000, -1)
    one, off = torch.ones(1000), torch.full((1000,), 5)
    possible = {1, 3}
    assert set(gumbel_sample(logits, one, fresh_keys(1000)).tolist()) == possible
    drawn = gumbel_sample_truncated(logits, one, fresh_keys(1000), top_k=off, top_p=one, min_p=one * 0)
    assert set(drawn.tolist()) == possible


def test_an_almost_frozen_distribution_is_greedy() -> None:
    logits = torch.tensor([[3.0, 900.0, -900.0, 899.0]])
    for temperature in (1e-30, 1e-6, 1e-3):
        assert int(gumbel_sample(logits, torch.tensor([temperature]), fresh_keys(1))) == 1


def test_a_row_full_of_nan_is_cut_by_all_parameters_without_an_error() -> None:
    one = torch.ones(1)
    drawn = gumbel_sample_truncated(
        torch.full((1, 7), torch.nan),
        one,
        fresh_keys(1),
        top_k=torch.tensor([3]),
        top_p=one / 2,
        min_p=one / 2,
    )
    assert 0 <= int(drawn) < 7


def test_rows_full_of_nan_still_give_an_index_inside_the_vocabulary() -> None:
    logits = torch.full((1, 7), torch.nan)
    one = torch.ones(1)
    assert 0 <= int(gumbel_sample(logits, one, fresh_keys(1))) < 7
    drawn = gumbel_sample_truncated(
        logits, one, fresh_keys(1), top_k=torch.tensor([3]), top_p=one * 0.5, min_p=one * 0
    )
    assert 0 <= int(drawn) < 7
