"""Draws tokens from distributions by the Gumbel-max trick, on a CPU; the reference for the GPU kernels.

The caller passes a key of noise per row (`engine.sampling.noise`), so that a draw is a pure function. Each
row depends only on its own parameters, never on the rest of the batch.

Truncation keeps whole classes of equally likely tokens. Likelihoods are compared as integer deficits: the
difference of a scaled logit to the row's highest, in steps of 2^-19 (about the rounding of a float32 logit).
Deficits of 32 and more, a relative probability of 1e-14, are one class.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.noise import exponential, exponential_bound, hashed

_Floats: TypeAlias = npt.NDArray[np.float32]
_Ints: TypeAlias = npt.NDArray[np.int32]

MIN_TEMPERATURE: Final = 1e-5
"""Lower temperatures are the same as greedy, and dividing by less could overflow."""
STEPS: Final = 1 << 19
LARGEST: Final = 32.0 - 2.0**-18
_LARGEST: Final = np.float32(LARGEST)
_LAST: Final = int(LARGEST * STEPS)
_BLOCK: Final = 1 << 16
"""Logits processed at once, at least one row, so that they stay in a core's cache."""
_COARSE_BITS: Final = 12
_SLACK: Final = 1.0 + 1e-5


def all_finite(logits: torch.Tensor) -> torch.Tensor:
    """Whether all logits of a row are finite: `logits` [S, vocab] -> [S] bool."""
    # A sum is finite only if every term is, which takes one pass and no mask.
    return logits.sum(dim=-1, dtype=torch.float32).isfinite()


def greedy_sample(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely token of each row of `logits` [S, vocab], ties to the first, [S]; and `all_finite`."""
    if logits.is_cuda:
        from engine.kernels.sampling.argmax import (
            greedy_sample as fused,  # Triton comes with torch's CUDA builds alone
        )

        return fused(logits)
    if logits.dtype != torch.float32:
        return logits.argmax(dim=-1), all_finite(logits)
    return torch.from_numpy(logits.numpy().argmax(axis=-1)), all_finite(
        logits
    )  # torch.argmax takes ten times as long


def coldest(temperature: float) -> float:
    """The temperature that logits are divided by, bounded from below."""
    return max(temperature, MIN_TEMPERATURE)


def min_p_limit(min_p: float) -> int:
    """The highest deficit that min-p keeps."""
    return int(min(-math.log(min_p), LARGEST) * STEPS) if min_p > 0.0 else _LAST


def gumbel_sample(logits: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Draw from softmax(logits / temperature).

    `logits` is `[S, vocab]` float32, `temperature` `[S]`, `keys` `[S, 2]`, all on a CPU. Returns `[S]`.
    """
    return torch.from_numpy(np.concatenate([rows.drawn() for rows in _blocks(logits, temperature, keys)]))


def gumbel_sample_truncated(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    keys: torch.Tensor,
    *,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Draw from the most likely tokens: `top_k`, none below `min_p` of the best, `top_p` of the rest.

    `top_p` is a share of the mass that the other two left. The best token always stays, and so do tokens as
    likely as the last that stays. Parameters are `[S]`; `top_k` is the vocabulary's size when off, not 0.
    Returns `[S]` token ids.
    """
    vocab = logits.shape[-1]
    cuts = iter(
        [
            _Cut(k if k < vocab else 0, p, min_p_limit(m))
            for k, p, m in zip(top_k.tolist(), top_p.tolist(), min_p.tolist(), strict=True)
        ]
    )
    blocks = _blocks(logits, temperature, keys)
    return torch.tensor([token for rows in blocks for token in rows.drawn_within(cuts)])


def drawn_from(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    *,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Logits of the distribution that `gumbel_sample_truncated` draws from: -inf for tokens that it excludes.

    Arguments as there. Returns `[S, vocab]` float32. Reads a row several times.
    """
    vocab = logits.shape[-1]
    scaled = logits.float() / temperature.float().clamp(min=MIN_TEMPERATURE)[:, None]
    keys = torch.zeros((len(logits), 2), dtype=torch.int32)
    limits = zip(top_k.tolist(), top_p.tolist(), min_p.tolist(), strict=True)
    cuts = iter([_Cut(k if k < vocab else 0, p, min_p_limit(m)) for k, p, m in limits])
    excluded = [mask for rows in _blocks(logits, temperature, keys) for mask in rows.excluded_by(cuts)]
    return scaled.masked_fill_(torch.from_numpy(np.stack(excluded)), -torch.inf)


def _blocks(logits: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor) -> Iterator[_Rows]:
    """Groups of rows that fit a core's cache."""
    inverse = (1.0 / temperature.float().clamp(min=MIN_TEMPERATURE)).numpy()[:, None]
    array, words = logits.float().numpy(), keys.numpy()
    tokens = np.arange(array.shape[1], dtype=np.uint32)
    step = max(1, _BLOCK // array.shape[1])
    for i in range(0, len(array), step):
        yield _Rows.of(array[i : i + step], inverse[i : i + step], words[i : i + step], tokens)


@dataclass(frozen=True, slots=True)
class _Cut:
    top_k: int
    """0: off."""
    top_p: float
    limit: int
    """The highest deficit that min-p keeps."""

    def accepts(self, deficits: _Ints, mass: _Floats, column: int) -> bool:
        """Whether a token is certainly kept: a cheaper test than finding the cut."""
        own = deficits[column]
        if self.top_k or own > self.limit:
            return False
        if self.top_p >= 1.0:
            return True
        kept = mass if self.limit >= _LAST else mass * (deficits <= self.limit)
        return bool((mass * (deficits < own)).sum() < self.top_p * np.float64(kept.sum()))

    def deficit(self, deficits: _Ints, mass: _Floats) -> int:
        """The highest deficit that is kept."""
        cut = self.limit
        if self.top_k:
            cut = min(cut, int(np.partition(deficits, self.top_k - 1)[self.top_k - 1]))
        if self.top_p < 1.0:
            if cut < _LAST:
                kept = _where(deficits <= cut)
                deficits, mass = deficits[kept], mass[kept]
            cut = min(cut, _with_share(deficits, mass, self.top_p))
        return cut


def _with_share(deficits: _Ints, mass: _Floats, share: float) -> int:
    """The lowest deficit at or below which lies `share` of the mass, by a histogram and a sort of one bin."""
    if not len(deficits):
        return 0  # of a row that is not finite
    coarse = deficits >> _COARSE_BITS
    sums = np.bincount(coarse, weights=mass, minlength=1).cumsum()
    target = share * sums[-1]
    bin = min(int(np.searchsorted(sums, target)), len(sums) - 1)
    inside = _where(coarse == bin)
    deficits, mass = deficits[inside], mass[inside]
    order = np.argsort(deficits, kind="stable")
    base = sums[bin - 1] if bin else 0.0
    cumulative = base + mass[order].cumsum(dtype=np.float64)
    last = min(int(np.searchsorted(cumulative, target)), len(order) - 1)
    return int(deficits[order[last]])


def _where(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Indices of the true elements of a flat, sparse mask; tests eight at once."""
    if len(mask) % 8:
        return np.flatnonzero(mask)
    words = np.flatnonzero(mask.view(np.uint64))
    rows, columns = np.nonzero(mask.reshape(-1, 8)[words])
    return words[rows] * 8 + columns


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of logits to draw from."""

    logits: _Floats
    inverse: _Floats
    """[S, 1]: the reciprocals of temperatures."""
    keys: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.uint32]
    """[n]: the ids of the columns."""
    below: _Floats
    """Differences of scaled logits to the highest."""
    mass: _Floats
    """Probabilities relative to the most likely token's."""

    @classmethod
    def of(
        cls, logits: _Floats, inverse: _Floats, keys: npt.NDArray[np.int32], tokens: npt.NDArray[np.uint32]
    ) -> _Rows:
        with np.errstate(invalid="ignore"):
            below = np.subtract(logits.max(axis=1, keepdims=True), logits)
            np.multiply(below, inverse, out=below)
            mass = np.negative(below)
        return cls(logits, inverse, keys, tokens, below, np.exp(mass, out=mass))

    def columns(self) -> npt.NDArray[np.int64]:
        """The column of each row with the largest sum of scaled logit and noise; ties to the first.

        That is the token with the smallest exponential(bits) / mass. Since 1 - u <= -log(u), few tokens
        qualify, and the logarithm is computed only for them.
        """
        bits = hashed(self.keys, self.tokens)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = exponential_bound(bits)
            np.divide(ratios, self.mass, out=ratios)
            first = ratios.argmin(axis=1)
            every = np.arange(len(bits))
            bound = exponential(bits[every, first]) / self.mass[every, first] * np.float32(_SLACK * 2.0**32)
            rows, columns = np.divmod(_where((ratios <= bound[:, None]).reshape(-1)), ratios.shape[1])
            scores = self.logits[rows, columns] * self.inverse[rows, 0]
            scores -= np.log(exponential(bits[rows, columns]))
        order = np.lexsort((columns, -scores, rows))[::-1]
        best: npt.NDArray[np.int64] = first
        best[rows[order]] = columns[order]  # the last assignment wins: the best
        return best

    def drawn(self) -> npt.NDArray[np.int64]:
        return self.tokens[self.columns()].astype(np.int64)

    def drawn_within(self, cuts: Iterator[_Cut]) -> Iterator[int]:
        """Tokens drawn within the next cuts.

        Most tokens drawn from the whole distribution lie within the cut, and are kept. Top-k is cut first,
        since that costs less than noise for all tokens.
        """
        own_cuts = list(islice(cuts, len(self.logits)))
        columns = None if all(cut.top_k for cut in own_cuts) else self.columns()
        for i, cut in enumerate(own_cuts):
            mass, deficits = self.mass[i], self._deficits(i)
            column = 0 if columns is None else int(columns[i])
            if not cut.accepts(deficits, mass, column):
                kept = _where(deficits <= cut.deficit(deficits, mass))
                if len(kept):  # else the row is not finite
                    column = int(kept[self._few(i, kept).columns()[0]])
            yield int(self.tokens[column])

    def excluded_by(self, cuts: Iterator[_Cut]) -> Iterator[npt.NDArray[np.bool_]]:
        """For each row, which tokens the next cut excludes."""
        for i, cut in enumerate(islice(cuts, len(self.logits))):
            deficits = self._deficits(i)
            yield deficits > cut.deficit(deficits, self.mass[i])

    def _deficits(self, i: int) -> _Ints:
        with np.errstate(invalid="ignore"):
            steps: _Floats = np.fmin(self.below[i], _LARGEST) * np.float32(STEPS)
        return steps.astype(np.int32)

    def _few(self, i: int, kept: npt.NDArray[np.int64]) -> _Rows:
        """A row restricted to some columns."""
        row = slice(i, i + 1)
        return _Rows.of(self.logits[row, kept], self.inverse[row], self.keys[row], self.tokens[kept])
