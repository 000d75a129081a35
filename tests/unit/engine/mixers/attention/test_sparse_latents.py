"""Which tokens an indexer chooses."""

from __future__ import annotations

import pytest
import torch

from engine.mixers.attention import sparse_latents
from engine.mixers.attention.sparse_latents import choose
from engine.modeling.layers.indexer import IndexRows

ROWS, HEADS, DIM, TOKENS, MOST = 7, 5, 8, 30, 6


@pytest.fixture
def index() -> IndexRows:
    torch.manual_seed(0)
    return IndexRows(torch.randn(ROWS, HEADS, DIM), torch.randn(ROWS, HEADS), torch.randn(ROWS, DIM))


def seen(counts: list[int]) -> torch.Tensor:
    """The mask of rows that see so many of the first tokens."""
    return torch.zeros(len(counts), TOKENS).masked_fill(
        torch.arange(TOKENS) >= torch.tensor(counts)[:, None], -torch.inf
    )


def test_the_tokens_with_the_best_sums_of_positive_products_are_chosen(index: IndexRows) -> None:
    keys, counts = torch.randn(TOKENS, DIM), [30, 29, 12, 7, 6, 8, 30]
    chosen = choose(index, keys, seen(counts), MOST)
    for row, count in enumerate(counts):
        scores = [
            sum(
                float(index.weights[row, head]) * max(0.0, float(index.queries[row, head] @ keys[token]))
                for head in range(HEADS)
            )
            for token in range(count)
        ]
        best = sorted(range(count), key=lambda token: -scores[token])[:MOST]
        assert set(chosen[row].tolist()) == set(best)


def test_all_tokens_are_chosen_where_there_are_no_more(index: IndexRows) -> None:
    chosen = choose(index, torch.randn(TOKENS, DIM), seen([MOST - 2] * ROWS), MOST)
    assert all(set(range(MOST - 2)) <= set(row) for row in chosen.tolist())


@pytest.mark.parametrize("weight", [1.0, -1.0])
def test_of_tokens_without_a_positive_product_the_first_are_chosen(weight: float) -> None:
    """Also by a negative weight, which makes a negative zero of the sum."""
    rows = IndexRows(torch.ones(1, 1, DIM), torch.full((1, 1), weight), torch.ones(1, DIM))
    keys = -torch.ones(TOKENS, DIM)
    keys[::3] = 0.0
    assert choose(rows, keys, seen([TOKENS]), MOST).tolist() == [list(range(MOST))]


def test_the_choice_does_not_depend_on_how_many_rows_are_scored_at_once(
    index: IndexRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, own = torch.randn(TOKENS, DIM), torch.randn(ROWS, TOKENS, DIM)
    mask = seen([TOKENS] * ROWS)
    together = [choose(index, keys, mask, MOST) for keys in (shared, own)]
    monkeypatch.setattr(sparse_latents, "_SCORE_BYTES", 2 * 4 * HEADS * TOKENS)
    assert all(map(torch.equal, together, [choose(index, keys, mask, MOST) for keys in (shared, own)]))
