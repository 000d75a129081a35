"""Reads the weights of bitsandbytes checkpoints, dequantized: several tensors of a module become its weight.

`MODULE.weight` has two values a byte, or signed integers of 8 bits. `MODULE.weight.absmax` and others say
what they stand for, as `bitsandbytes.functional.QuantState` writes them; of integers `MODULE.SCB` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from engine.model_config.errors import WeightsError

_Parts: TypeAlias = dict[str, Tensor]

_BESIDE: Final = re.compile(
    r"(.+)\.(?:weight\.(absmax|quant_map|nested_absmax|nested_quant_map)|(SCB)"
    r"|weight\.quant_(state)\.bitsandbytes__(?:nf4|fp4))"
)
_LAYOUT: Final = ".weight_format"
"""Ends the name of a tensor that says how integers are arranged: 0 is row by row."""
_LARGEST: Final = 127


def dequantized(
    tensors: Iterable[tuple[str, Tensor]], *, values: bool = True
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a checkpoint, with one weight in place of the parts that it is stored in.

    Without `values`, weights of the same shapes and types that hold nothing. Raises WeightsError.
    """
    unfinished: dict[str, _Parts] = {}
    for name, tensor in tensors:
        module, part = _split(name, tensor)
        if name.endswith(_LAYOUT):
            if int(tensor):
                raise WeightsError(f"{name} is {int(tensor)}, but only integers row by row (0) are read")
        elif not part:
            yield name, tensor
        else:
            parts = unfinished.setdefault(module, {})
            parts[part] = tensor
            if not _missing(parts):
                del unfinished[module]
                yield f"{module}.weight", _weight(parts, values)
    for module, parts in unfinished.items():
        missing = ", ".join(sorted(_missing(parts)))
        raise WeightsError(f"{module} is quantized by bitsandbytes, but has no {missing}")


def _split(name: str, tensor: Tensor) -> tuple[str, str]:
    """Module and part of a tensor that is not a weight by itself; otherwise no part."""
    if found := _BESIDE.fullmatch(name):
        return found[1], next(filter(None, found.groups()[1:]))
    module, _, part = name.rpartition(".")
    return (module, part) if part == "weight" and tensor.dtype in (torch.uint8, torch.int8) else (name, "")


def _missing(parts: _Parts) -> set[str]:
    if "SCB" in parts or ("weight" in parts and parts["weight"].dtype == torch.int8):
        return {"weight", "SCB"} - parts.keys()
    needed = {"weight", "absmax", "quant_map", "state"}
    if "state" in parts and "nested_blocksize" in _state(parts):
        needed |= {"nested_absmax", "nested_quant_map"}
    return needed - parts.keys()


def _state(parts: _Parts) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(parts["state"].tolist()))
    return found


def _weight(parts: _Parts, values: bool) -> Tensor:
    return _of_bytes(parts, values) if "state" in parts else _of_integers(parts)


def _of_integers(parts: _Parts) -> Tensor:
    return parts["weight"] * (parts["SCB"].float() / _LARGEST).unsqueeze(1)


def _of_bytes(parts: _Parts, values: bool) -> Tensor:
    """In the type that bitsandbytes computes weights in, whose rounding they have."""
    state = _state(parts)
    shape, dtype = state["shape"], getattr(torch, state["dtype"])
    if not values:
        return torch.empty(shape, dtype=dtype, device="meta")
    scale = parts["absmax"]
    if "nested_blocksize" in state:
        nested = parts["nested_quant_map"].float()[scale.int()]
        scale = _scaled(nested, parts["nested_absmax"].float(), state["nested_blocksize"])
        scale = scale + state["nested_offset"]
    packed = parts["weight"].flatten()
    codes = torch.stack((packed >> 4, packed & 15), dim=-1).flatten()
    weights = _scaled(parts["quant_map"].float()[codes.int()], scale.float(), state["blocksize"])
    return weights[: shape[0] * shape[1]].view(shape).to(dtype)


def _scaled(values: Tensor, scale: Tensor, block: int) -> Tensor:
    """`values` [n] times the scale of each block of them; the last may be shorter."""
    return values * scale.repeat_interleave(block)[: len(values)]
