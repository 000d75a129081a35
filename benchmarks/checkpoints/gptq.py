"""Choose the codes of a matrix so that its products, not its values, are nearest to those of the weights.

`moments` [in, in] are the second moments of a layer's inputs: the squared error of its products is
(weight - values) @ moments @ (weight - values).t(), row by row.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from benchmarks.checkpoints.grids import Grid

_DAMPING: Final = 0.01
"""Of the mean of the diagonal of second moments, added to it."""
_BLOCK: Final = 128


def damped(moments: Tensor) -> Tensor:
    """Of an input that is never seen, weights keep their values."""
    diagonal = moments.diagonal()
    return moments + torch.diag(_DAMPING * diagonal.mean().expand_as(diagonal))


def gptq(weight: Tensor, moments: Tensor, grid: Grid) -> Tensor:
    """Codes [out, in]: each column is rounded, and the rest corrects for its error (arXiv 2210.17323).

    Columns of larger inputs come first; groups keep their places.
    """
    order = moments.diagonal().argsort(descending=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments[order][:, order]))
    factor = torch.linalg.cholesky(inverse, upper=True)
    rest, codes = weight[:, order].clone(), torch.empty_like(weight)
    places, pivots = order.tolist(), factor.diagonal().tolist()
    for start in range(0, len(places), _BLOCK):
        end = min(start + _BLOCK, len(places))
        errors = torch.zeros_like(weight[:, start:end])
        for at in range(start, end):
            column, place = rest[:, at], places[at]
            codes[:, place] = found = grid.codes(column, place)
            error = (column - grid.values(found, place)) / pivots[at]
            rest[:, at:end].addr_(error, factor[at, at:end], alpha=-1)
            errors[:, at - start] = error
        rest[:, end:] -= errors @ factor[start:end, end:]
    return codes
