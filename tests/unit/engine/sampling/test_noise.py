"""Positional randomness: Gumbel noise, independent, and the same everywhere."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.noise import exponential, exponential_bound, gumbel, hashed, keys

UINT64 = st.integers(0, 2**64 - 1)
POSITION = st.integers(0, 2**31)
TOKEN = st.integers(0, 300_000)


def noise(seeds: npt.ArrayLike, positions: npt.ArrayLike, tokens: list[int]) -> torch.Tensor:
    return torch.from_numpy(gumbel(hashed(keys(seeds, positions), np.array(tokens))))


@given(seed=UINT64, position=POSITION, tokens=st.lists(TOKEN, min_size=1, max_size=8))
def test_noise_is_finite(seed: int, position: int, tokens: list[int]) -> None:
    assert noise([seed], [position], tokens).isfinite().all()


@pytest.mark.parametrize("bits", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_noise_is_as_accurate_as_float32_can_be_at_both_ends(bits: int) -> None:
    """With u = 1 - 2^-33 the noise is 22.9, though float32 has no number between 1 - 2^-24 and 1."""
    uniform = ((bits ^ 2**31) + 0.5) / 2**32
    expected = -math.log(-math.log1p(uniform - 1.0) if uniform > 0.5 else -math.log(uniform))
    assert float(gumbel(np.array([bits], dtype=np.uint32))[0]) == pytest.approx(expected, rel=3e-7, abs=3e-7)


@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_what_is_cheap_to_compute_is_no_more_than_the_exponential(bits: list[int]) -> None:
    array = np.array(bits, dtype=np.uint32)
    assert (exponential_bound(array) * 2.0**-32 <= exponential(array) * (1 + 1e-6)).all()


@given(
    pairs=st.lists(st.tuples(UINT64, POSITION), min_size=1, max_size=8),
    tokens=st.lists(TOKEN, min_size=1, max_size=8),
)
def test_noise_does_not_depend_on_what_is_asked_along(
    pairs: list[tuple[int, int]], tokens: list[int]
) -> None:
    together = noise([seed for seed, _ in pairs], [position for _, position in pairs], tokens)
    for row, (seed, position) in enumerate(pairs):
        for column, token in enumerate(tokens):
            assert noise([seed], [position], [token]).item() == together[row, column].item()


def test_noise_never_changes_between_versions() -> None:
    """A request may be retried on a worker of another release: it must draw the same tokens there."""
    got = noise([0, 0, 1, 2**64 - 1], [0, 1, 0, 8191], [0, 128_255])
    first = [[0.305999, 1.806589], [1.485043, 0.026456], [0.499524, 0.153872], [-0.221239, 1.762744]]
    torch.testing.assert_close(got, torch.tensor(first), rtol=0, atol=1e-6)


def test_noise_is_gumbel_along_seeds_positions_and_tokens() -> None:
    n = 100_000
    along = {
        "tokens": noise([7], [7], list(range(n))).flatten(),
        "positions": noise(np.full(n, 7), np.arange(n), [7]).flatten(),
        "seeds": noise(np.arange(n), np.full(n, 7), [7]).flatten(),
    }
    for name, values in along.items():
        uniform = (-(-values.double()).exp()).exp().numpy()  # Gumbel's distribution function
        counts, _ = np.histogram(uniform, bins=100, range=(0.0, 1.0))
        chi_square = float(((counts - n / 100) ** 2 / (n / 100)).sum())
        assert chi_square < 160.0, name  # 99 degrees of freedom: exceeded once in ten thousand
        assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.02, name


def test_neighbouring_seeds_positions_and_tokens_share_no_shifted_sequence() -> None:
    by_token = torch.cat([noise([seed], [0], list(range(64))) for seed in range(200)])
    by_position = torch.stack([noise(np.full(64, seed), np.arange(64), [0])[:, 0] for seed in range(200)])
    for sequences in (by_token, by_position):
        assert len(sequences.unique()) > 0.999 * sequences.numel()
