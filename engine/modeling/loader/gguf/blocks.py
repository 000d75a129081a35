"""Reads the blocks of GGUF's types, which converted folders have as bytes, as the tensors of a model.

`MODULE.codes.Q4_K` has the integers, scales and offsets of a linear layer that keeps them,
`MODULE.weight.Q6_K` the values of any other tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from engine.model_config.quantization import Quantization
from engine.modeling.loader.gguf.codes import GROUPS, Bytes, coded

_NAME: Final = re.compile(rf"(.+)\.(codes|weight)\.({'|'.join(kind.name for kind in GROUPS)}|BF16)")
_AT_ONCE: Final = 1 << 20
"""Values that a thread decodes at once, as several times as many bytes."""


def unpacked(
    name: str, stored: Tensor, quantization: Quantization | None, dtype: torch.dtype, *, values: bool = True
) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a stored one stands for: itself, unless it has blocks.

    `dtype`: of values; scales and offsets have 32 bits. Without `values`, tensors of these shapes and types
    that hold nothing.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        yield name, stored
        return
    module, part, kind = found[1], found[2], GGMLQuantizationType[found[3]]
    if kind is GGMLQuantizationType.BF16:
        yield f"{module}.weight", stored.view(torch.bfloat16)
        return
    block, size = GGML_QUANT_SIZES[kind]
    columns = stored.shape[1] // size * block
    if part == "weight":
        targets = {"weight": _empty((len(stored), columns), dtype, values)}
    else:
        assert quantization is not None
        assert quantization.group is not None
        groups = (len(stored), columns // quantization.group)
        targets = {"codes": _empty((len(stored), columns), torch.int8, values)}
        per_group = ("scales", "offsets") if quantization.zero_points else ("scales",)
        targets |= {one: _empty(groups, torch.float32, values) for one in per_group}
    if values:
        _decode(stored.numpy(), kind, columns, targets)
    for one, tensor in targets.items():
        yield f"{module}.{one}", tensor


def _empty(shape: tuple[int, int], dtype: torch.dtype, values: bool) -> Tensor:
    with torch.inference_mode(False):  # threads that write them are in no such mode
        return torch.empty(shape, dtype=dtype, device="cpu" if values else "meta")


def _decode(data: Bytes, kind: GGMLQuantizationType, columns: int, targets: dict[str, Tensor]) -> None:
    rows = max(1, _AT_ONCE // columns)
    fill: Callable[[int], None]
    if "weight" in targets:

        def fill(first: int) -> None:
            dense = coded(data[first : first + rows], kind).dense()
            targets["weight"][first : first + rows] = torch.from_numpy(dense)

    else:
        group = columns // targets["scales"].shape[1]
        arrays = {name: tensor.numpy() for name, tensor in targets.items()}

        def fill(first: int) -> None:
            part = coded(data[first : first + rows], kind).in_groups_of(group)
            arrays["codes"][first : first + rows] = part.codes
            arrays["scales"][first : first + rows] = part.scales
            if "offsets" in arrays:
                arrays["offsets"][first : first + rows] = 0 if part.offsets is None else part.offsets

    starts = range(0, len(data), rows)
    if len(starts) == 1:
        fill(0)
        return
    with ThreadPoolExecutor(torch.get_num_threads(), "blocks") as pool:
        for _ in pool.map(fill, starts):
            pass
