"""Print the dtype in which this machine's CPU runs a model's matrix products faster.

python -m engine.modeling.layers.linear.dtype_trial
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import torch

from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.linear.panels import fastest

_ROWS: Final = (1, 16, 256)
"""A single decode, a batch of decodes, a prefill chunk; all weighted equally."""
_FEATURES: Final = (576, 3072)
_MOST_SECONDS: Final = 0.1
"""For each product: the result is kept for all later starts."""


def faster_dtype() -> str:
    """ "bfloat16" or "float32". Takes a second on one thread."""
    brief, full = (_seconds(dtype) for dtype in (torch.bfloat16, torch.float32))
    ratio = math.prod(a / b for a, b in zip(brief, full, strict=True))
    return "bfloat16" if ratio < 1 else "float32"


@torch.inference_mode()
def _seconds(dtype: torch.dtype) -> Sequence[float]:
    layer = Linear(*_FEATURES, bias=False).to(dtype)
    torch.nn.init.normal_(layer.weight)
    layer.pack()
    inputs = [torch.ones(rows, _FEATURES[0], dtype=dtype) for rows in _ROWS]
    return [fastest(partial(layer, x), _MOST_SECONDS) for x in inputs]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(faster_dtype())
