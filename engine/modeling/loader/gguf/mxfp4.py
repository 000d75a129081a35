"""Experts of gpt-oss: GGUF's blocks of 4-bit floats in the layout of the original checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, ReaderTensor

from engine.model_config.errors import UnsupportedModel

_NAME: Final = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.(weight|bias)")
_BLOCK_BYTES: Final = 17
"""An exponent, and 32 values."""


def is_expert(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def expert_tensors(
    tensor: ReaderTensor, tensors: Mapping[str, ReaderTensor]
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Names and values that a tensor of the file becomes, the gates together with `tensors`' up projections.

    Raises UnsupportedModel for weights in another type.
    """
    found = _NAME.fullmatch(tensor.name)
    assert found is not None
    layer, part, kind = found.groups()
    if part == "up":
        return
    both = [tensor, tensors[f"blk.{layer}.ffn_up_exps.{kind}"]] if part == "gate" else [tensor]
    name = f"model.layers.{layer}.mlp.experts.{'gate_up' if part == 'gate' else part}_proj"
    if kind == "bias":
        yield f"{name}_bias", _alternating([one.data for one in both])
        return
    for one in both:
        if one.tensor_type is not GGMLQuantizationType.MXFP4:
            raise UnsupportedModel(
                f"the GGUF file has {one.name} as {one.tensor_type.name};"
                " Baton reads experts of gpt-oss in MXFP4"
            )
    blocks, scales = zip(*(_unpacked(one.data) for one in both), strict=True)
    yield f"{name}_blocks", _alternating(blocks)
    yield f"{name}_scales", _alternating(scales)


def _alternating(parts: Any) -> npt.NDArray[Any]:
    """[E, rows, ...] of each -> [E, parts * rows, ...], the first row of each part first."""
    stacked = np.stack(parts, axis=2)
    return np.ascontiguousarray(stacked.reshape(len(stacked), -1, *stacked.shape[3:]))


def _unpacked(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """[E, rows, bytes] -> pairs of neighbours [E, rows, groups, 16], exponents [E, rows, groups].

    GGUF has value i with value i + 16 in a byte, the original value 2 i with 2 i + 1.
    """
    blocks = data.view(np.uint8).reshape(*data.shape[:2], -1, _BLOCK_BYTES)
    packed = blocks[..., 1:]
    codes = np.concatenate([packed & 15, packed >> 4], axis=-1)
    return codes[..., ::2] | codes[..., 1::2] << 4, blocks[..., 0]
