"""Draws against a brute-force reading of what the parameters mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import drawing
from engine.drawing import draw, draw_truncated


def nucleus(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """Tokens that may be drawn, likeliest first, and their renormalised probabilities: the slow way."""
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


def frequencies(logits: torch.Tensor, n: int, **cuts: float) -> dict[int, float]:
    """How often each token comes out over n evenly spread uniform numbers: the distribution, up to 1/n."""
    rows = logits.expand(n, -1)
    uniform = (torch.arange(n) + 1.0) / n
    temperature = torch.full((n,), cuts.pop("temperature"))
    if cuts:
        limit = torch.full((n,), int(cuts["top_k"]))
        top_p, min_p = (torch.full((n,), cuts[name]) for name in ("top_p", "min_p"))
        tokens = draw_truncated(rows, temperature, uniform, top_k=limit, top_p=top_p, min_p=min_p)
    else:
        tokens = draw(rows, temperature, uniform)
    ids, counts = tokens.unique(return_counts=True)
    return {int(i): int(c) / n for i, c in zip(ids, counts, strict=True)}


@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.2, 3.0),
    top_k=st.integers(1, 24),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.5),
)
def test_a_truncated_draw_follows_the_renormalised_nucleus(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.randn(24, generator=torch.Generator().manual_seed(seed)) * 2
    expected = nucleus(logits.numpy(), temperature, top_k, top_p, min_p)
    got = frequencies(logits, 2000, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert set(got) <= set(expected)
    for token, probability in expected.items():
        assert got.get(token, 0.0) == pytest.approx(probability, abs=2e-3)


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.2, 3.0))
def test_a_plain_draw_follows_the_softmax(seed: int, temperature: float) -> None:
    logits = torch.randn(24, generator=torch.Generator().manual_seed(seed)) * 2
    expected = (logits / temperature).softmax(-1)
    got = frequencies(logits, 2000, temperature=temperature)
    for token in range(24):
        assert got.get(token, 0.0) == pytest.approx(float(expected[token]), abs=2e-3)


@given(
    seed=st.integers(0, 10_000),
    rows=st.lists(
        st.tuples(
            st.sampled_from([0.3, 1.0, 5.0]),
            st.sampled_from([1, 3, 40, 100]),
            st.sampled_from([0.1, 0.5, 0.9, 1.0]),
            st.sampled_from([0.0, 0.01, 0.3]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_the_short_list_draws_what_sorting_the_vocabulary_draws(
    seed: int, rows: list[tuple[float, int, float, float]]
) -> None:
    """A list of 8 out of 100 tokens is sometimes enough and sometimes not, by row and by batch."""
    logits = torch.randn(len(rows), 100, generator=torch.Generator().manual_seed(seed)) * 3
    uniform = torch.rand(len(rows), generator=torch.Generator().manual_seed(seed + 1))
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*rows, strict=True))

    def drawn(shortlist: int) -> list[int]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drawing, "SHORTLIST", shortlist)
            tokens = draw_truncated(logits, temperature, uniform, top_k=top_k, top_p=top_p, min_p=min_p)
            return tokens.tolist()

    assert drawn(8) == drawn(100)


@pytest.mark.parametrize("uniform", [1e-38, 2.0**-53, 0.5, 1.0])
def test_a_token_of_probability_zero_is_never_drawn(uniform: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    u, one = torch.tensor([uniform]), torch.ones(1)
    assert int(draw(logits, one, u)) in (1, 3)
    off = torch.tensor([5])
    assert int(draw_truncated(logits, one, u, top_k=off, top_p=one, min_p=one * 0)) in (1, 3)


def test_an_almost_frozen_distribution_is_greedy() -> None:
    logits = torch.tensor([[3.0, 900.0, -900.0, 899.0]])
    for temperature in (1e-30, 1e-6, 1e-3):
        assert int(draw(logits, torch.tensor([temperature]), torch.tensor([0.999]))) == 1


def test_rows_full_of_nan_still_give_an_index_inside_the_vocabulary() -> None:
    logits = torch.full((1, 7), torch.nan)
    one = torch.ones(1)
    assert 0 <= int(draw(logits, one, one)) < 7
    drawn = draw_truncated(logits, one, one, top_k=torch.tensor([3]), top_p=one * 0.5, min_p=one * 0)
    assert 0 <= int(drawn) < 7
