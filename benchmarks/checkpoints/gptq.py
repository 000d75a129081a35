"""Choose the codes of a matrix so that its products, not its values, are nearest to those of the weights.

`moments` [in, in] are the second moments of a layer's inputs: the squared error of its products is
(weight - values) @ moments @ (weight - values).t(), row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from benchmarks.checkpoints.grids import Grid

_DAMPING: Final = 0.01
"""Of the mean of the diagonal of second moments, added to it."""
_BLOCK: Final = 128
_SWEEPS: Final = 3


def damped(moments: Tensor) -> Tensor:
    """Of an input that is never seen, weights keep their values."""
    mean = moments.diagonal().mean()
    return moments + torch.eye(len(moments)) * _DAMPING * mean


def rounded(weight: Tensor, moments: Tensor, grid: Grid) -> tuple[Grid, Tensor]:
    """Codes [out, in] of the nearest values."""
    return grid, torch.stack([grid.codes(column, index) for index, column in enumerate(weight.t())], dim=1)


def gptq(weight: Tensor, moments: Tensor, grid: Grid) -> tuple[Grid, Tensor]:
    """Column by column (arXiv 2210.17323), then scales and codes in turns, each given the other."""
    codes = in_order(weight, moments, grid)
    for _ in range(_SWEEPS):
        grid = grid.fitted(weight, codes, moments)
        codes = descended(weight, codes, moments, grid)
    return grid, codes


METHODS: Final[dict[str, Callable[[Tensor, Tensor, Grid], tuple[Grid, Tensor]]]] = {
    "gptq": gptq,
    "round": rounded,
}


def in_order(weight: Tensor, moments: Tensor, grid: Grid) -> Tensor:
    """Codes [out, in]: each column is rounded, and those that follow correct for its error.

    Columns of larger inputs come first; groups keep their places.
    """
    order = moments.diagonal().argsort(descending=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments[order][:, order]))
    factor = torch.linalg.cholesky(inverse, upper=True)
    rest, codes = weight[:, order].clone(), torch.empty_like(weight)
    places = order.tolist()
    for start in range(0, len(places), _BLOCK):
        end = min(start + _BLOCK, len(places))
        errors = torch.zeros(len(weight), end - start)
        for at in range(start, end):
            column, place = rest[:, at], places[at]
            codes[:, place] = grid.codes(column, place)
            error = (column - grid.values(codes[:, place], place)) / factor[at, at]
            rest[:, at:end] -= error.unsqueeze(1) * factor[at, at:end]
            errors[:, at - start] = error
        rest[:, end:] -= errors @ factor[start:end, end:]
    return codes


def descended(weight: Tensor, codes: Tensor, moments: Tensor, grid: Grid) -> Tensor:
    """Codes after one pass over the columns, each chosen anew for the present values of all others."""
    codes = codes.clone()
    values = grid.dense(codes)
    slope = (weight - values) @ moments
    for start in range(0, weight.shape[1], _BLOCK):
        end = min(start + _BLOCK, weight.shape[1])
        before = values[:, start:end].clone()
        within = slope[:, start:end].clone()
        for at in range(start, end):
            best = values[:, at] + within[:, at - start] / moments[at, at]
            codes[:, at] = grid.codes(best, at)
            value = grid.values(codes[:, at], at)
            within -= (value - values[:, at]).unsqueeze(1) * moments[at, start:end]
            values[:, at] = value
        slope -= (values[:, start:end] - before) @ moments[start:end]
    return codes
