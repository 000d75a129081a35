"""Write a checkpoint of random weights at the speed of the disk: FP8 with a scale per output feature.

As compressed-tensors stores it, for models with the tensors of Llama. A matrix repeats 16 MiB of values, and
its scales keep activations in range.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.checkpoints.quantize import quantization_config

_FILE_BYTES: Final = 1 << 30
_PATTERN_BYTES: Final = 16 << 20
_DTYPES: Final = {torch.float8_e4m3fn: "F8_E4M3", torch.bfloat16: "BF16", torch.float32: "F32"}
_LARGEST_CODE: Final = 120
"""Of a positive FP8 number that is used: 256. Larger ones are few, and the last is NaN."""


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A tensor that repeats a few values."""

    name: str
    shape: tuple[int, ...]
    values: Tensor

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.values.itemsize

    def pieces(self) -> Iterator[memoryview]:
        values = self.values.view(torch.uint8).numpy().data
        for begin in range(0, self.nbytes, len(values)):
            yield values[: self.nbytes - begin]


def write_checkpoint(config: dict[str, Any], folder: Path, *, threads: int = 8) -> None:
    """A folder of config.json and of files of a gibibyte, of which each thread writes one at a time."""
    folder.mkdir(parents=True)
    quantization = {"quantization_config": quantization_config("fp8", 0, symmetric=True)}
    (folder / "config.json").write_text(json.dumps(config | quantization))
    files = {f"model-{number:05}.safetensors": held for number, held in enumerate(_files(_tensors(config)))}
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda name: _write(folder / name, files[name]), files))
    places = {tensor.name: name for name, held in files.items() for tensor in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _files(tensors: Iterable[_Repeated]) -> Iterator[list[_Repeated]]:
    held: list[_Repeated] = []
    for tensor in tensors:
        held.append(tensor)
        if sum(one.nbytes for one in held) >= _FILE_BYTES:
            yield held
            held = []
    if held:
        yield held


def _write(path: Path, tensors: list[_Repeated]) -> None:
    """A safetensors file: an 8-byte length, a JSON header, the data."""
    ends = list(accumulate(tensor.nbytes for tensor in tensors))
    header = json.dumps(
        {
            tensor.name: {
                "dtype": _DTYPES[tensor.values.dtype],
                "shape": tensor.shape,
                "data_offsets": [end - tensor.nbytes, end],
            }
            for tensor, end in zip(tensors, ends, strict=True)
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, struct.calcsize("<Q") + len(header) + ends[-1])
        begin = memoryview(struct.pack("<Q", len(header)) + header)
        for left in (begin, *(piece for tensor in tensors for piece in tensor.pieces())):
            while left:  # a write may be short
                left = left[file.write(left) :]


def _tensors(config: dict[str, Any]) -> Iterator[_Repeated]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    wide, narrow = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "self_attn.q_proj": (wide, hidden),
        "self_attn.k_proj": (narrow, hidden),
        "self_attn.v_proj": (narrow, hidden),
        "self_attn.o_proj": (hidden, wide),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, _LARGEST_CODE, (_PATTERN_BYTES,), dtype=torch.uint8, generator=generator)
    codes |= torch.randint(0, 2, (_PATTERN_BYTES,), dtype=torch.uint8, generator=generator) << 7
    matrix, scales = codes.view(torch.float8_e4m3fn), torch.full((hidden,), 1e-4)
    vectors = torch.empty(_PATTERN_BYTES // 2, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    embeddings = config["vocab_size"], hidden

    yield _Repeated("model.embed_tokens.weight", embeddings, vectors)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name, shape in shapes.items():
            yield _Repeated(f"{prefix}.{name}.weight", shape, matrix)
            yield _Repeated(f"{prefix}.{name}.weight_scale", (shape[0], 1), scales)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield _Repeated(f"{prefix}.{norm}.weight", (hidden,), ones)
    yield _Repeated("model.norm.weight", (hidden,), ones)
    if not config.get("tie_word_embeddings"):
        yield _Repeated("lm_head.weight", embeddings, vectors)
