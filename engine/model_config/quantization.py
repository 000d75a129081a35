"""Formats of quantized weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

FP8_BLOCK: Final = 128
"""Rows and columns of a block that shares a scale."""

MX_BLOCK: Final = 32
"""Input features that share an exponent, in MXFP4 and MXFP8."""

NVFP4_BLOCK: Final = 16
"""Input features that share a scale."""

NESTED: Final = {
    "language_model.model.blocks.": "model.layers.",  # transformers 5.23, of Kimi K2.5
    "language_model.model.encoder.layers.": "model.layers.",  # transformers 5.23, of QianfanOCR
    "model.language_model.": "model.",  # transformers from 4.52 on
    "language_model.model.": "model.",  # before
    "model.text_model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "language_model.backbone.": "model.",  # Nemotron-H with a vision part
    "backbone.": "model.",  # Nemotron-H
}
"""What names begin with in checkpoints with a vision part, which nest the language model, and in others."""


class WeightFormat(Enum):
    """How the weights of linear layers are stored and multiplied."""

    FP8_ROWS = "fp8"
    """8-bit floats with a scale per output feature; activations are quantized token by token."""
    FP8_BLOCKS = "fp8 in blocks"
    """8-bit floats with a scale per block; activations are quantized in groups of `FP8_BLOCK` features."""
    INTEGERS = "integers"
    """4- or 8-bit integers with a scale per group of input features; activations are not quantized."""
    MXFP4 = "mxfp4"
    """4-bit floats (e2m1) with an exponent (e8m0) per 32 input features; activations are not quantized."""
    MXFP8 = "mxfp8"
    """8-bit floats (e4m3) with an exponent (e8m0) per 32 input features; activations are not quantized."""
    NVFP4 = "nvfp4"
    """4-bit floats (e2m1) with a scale (e4m3) per 16 input features; activations are not quantized."""
    BITSANDBYTES = "bitsandbytes"
    """4-bit codes of floats or 8-bit integers with scales, dequantized as they are read."""
    GGUF = "gguf"
    """Integers of up to 8 bits with a scale and an offset per group; activations are not quantized."""


class Mxfp4Names(Enum):
    """Names of a module's values, and of their exponents."""

    GPT_OSS = ("blocks", "scales")
    COMPRESSED = ("weight_packed", "weight_scale")
    QUARK = ("weight", "weight_scale")


class Packing(Enum):
    """How a checkpoint packs integers in words of 32 bits."""

    AWQ = "awq"
    GPTQ = "gptq"
    COMPRESSED = "compressed-tensors"
    NONE = "signed integers of 8 bits, one after the other"


class Nvfp4Names(Enum):
    """Names of a module's values, of their scales, and of the factor of all scales."""

    COMPRESSED = ("weight_packed", "weight_scale", "weight_global_scale")
    MODELOPT = ("weight", "weight_scale", "weight_scale_2")

    @property
    def divided(self) -> bool:
        """Whether scales are divided by the factor."""
        return self is Nvfp4Names.COMPRESSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The format of all linear layers of a model, except those that are left out, those that `others` name,
    and embeddings."""

    format: WeightFormat
    others: tuple[Quantization, ...] = ()
    """Formats of modules with one of their own, which each lists in its `targets`."""
    weights_only: bool = False
    """FP8_ROWS: whether activations are not quantized, and so weights are dequantized at load."""
    scale: str = "weight_scale"
    """Name of the scales' tensor in a checkpoint's module."""
    per_tensor: bool = False
    """Whether the checkpoint has one scale per projection in place of one per output feature."""
    online: bool = False
    """Whether the checkpoint is not quantized: weights are quantized as they are loaded."""
    packing: Packing = Packing.COMPRESSED
    """Packing of integers, as all further fields."""
    bits: int = 4
    act_order: bool = False
    """Whether the checkpoint says which group each input feature belongs to."""
    group: int | None = None
    """Input features that share a scale; None: all."""
    zero_points: bool = False
    """GGUF: whether there are offsets."""
    zero_offset: int = 0
    """Added to the zero points that are stored."""
    mxfp4: Mxfp4Names = Mxfp4Names.GPT_OSS
    nvfp4: Nvfp4Names = Nvfp4Names.COMPRESSED
    spellings: tuple[tuple[str, str], ...] = ()
    """Other names that the tensors of a module have in some checkpoints, and the names that are read."""
    unused: tuple[str, ...] = ()
    """Names of tensors that hold nothing further."""
    targets: tuple[str, ...] = ()
    """The only modules that are quantized; if empty, all are. See `left_out`."""
    left_out: tuple[str, ...] = ()
    """Modules that are not quantized: names, or regular expressions after "re:"."""

    @property
    def bytes_per_weight(self) -> float:
        match self.format:
            case WeightFormat.INTEGERS:
                # A scale in 16 bits, as most checkpoints have it, and a zero point in 8.
                return self.bits / 8 + (0.0 if self.group is None else 3 / self.group)
            case WeightFormat.MXFP4:
                return 0.5 + 1 / MX_BLOCK
            case WeightFormat.NVFP4:
                return 0.5 + 1 / NVFP4_BLOCK
            case WeightFormat.FP8_ROWS | WeightFormat.FP8_BLOCKS:
                return 1.0
            case WeightFormat.BITSANDBYTES:
                return self.bits / 8
            case WeightFormat.MXFP8:
                return 1.0 + 1 / MX_BLOCK
            case WeightFormat.GGUF:
                # The scale and the offset in 32 bits. Of 4-bit integers half of the first byte.
                return 1.0 + (8 if self.zero_points else 4) / (self.group or math.inf)

    @property
    def stays_on_gpus(self) -> bool:
        """Whether GPUs multiply weights as they are stored; if not, weights are dequantized at load."""
        if self.format is WeightFormat.INTEGERS:
            return self.bits == 4
        return self.format not in _DEQUANTIZED and not self.weights_only

    def read_as(self, name: str) -> str:
        """The name under which the checkpoint's tensor `name` is read."""
        module, _, tensor = name.rpartition(".")
        return next((f"{module}.{read}" for spelling, read in self.spellings if spelling == tensor), name)

    def of(self, module: str) -> Quantization | None:
        """The format of the checkpoint's linear layer `module`; None: it is not quantized."""
        return next((each for each in (*self.others, self) if each.covers(module)), None)

    def covers(self, module: str) -> bool:
        """Whether the checkpoint's linear layer `module` has this format, if no other has it."""
        spellings = list(_spellings(module))

        def listed(patterns: tuple[str, ...]) -> bool:
            return any(_names(pattern, spelling) for pattern in patterns for spelling in spellings)

        return (not self.targets or listed(self.targets)) and not listed(self.left_out)


_DEQUANTIZED: Final = (WeightFormat.GGUF, WeightFormat.MXFP8, WeightFormat.BITSANDBYTES)
ONLINE_FP8: Final = Quantization(format=WeightFormat.FP8_ROWS, online=True)


def _spellings(module: str) -> Iterator[str]:
    """The name, and those in checkpoints that nest the language model."""
    yield module
    for nested, plain in NESTED.items():
        if f"{module}.".startswith(plain):
            yield f"{nested}{f'{module}.'.removeprefix(plain)}".removesuffix(".")


def _names(pattern: str, module: str) -> bool:
    """Whether `pattern` names `module`, one that contains it, or the end of its path."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return f".{pattern.strip('.')}." in f".{module}."
