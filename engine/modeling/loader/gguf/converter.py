"""Converts a GGUF file to a Hugging Face folder.

GGUF packs weights, tokenizer and configuration in one file, quantized. The folder has safetensors of about
the same size: the blocks of integers as they are in the file, which are read when the model is loaded
(`blocks.py`), or 16 bits for types of other values. Does not import torch.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, ReaderTensor, dequantize
from safetensors.numpy import save_file

from common.progress import Progress
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.modeling.loader.gguf.architectures import (
    ARCHITECTURES,
    DEQUANTIZED,
    LINEAR,
    MERGED,
    MODULES,
    GgufArchitecture,
    Part,
    num_layers,
    rope,
)
from engine.modeling.loader.gguf.codes import GROUPS, WITH_OFFSETS
from engine.modeling.loader.gguf.metadata import DIVISORS, Metadata, open_gguf
from engine.modeling.loader.gguf.mxfp4 import expert_tensors, is_expert
from engine.modeling.loader.gguf.rearranged import REARRANGED
from engine.modeling.loader.gguf.tokenizer import write_tokenizer

Array: TypeAlias = npt.NDArray[Any]

_KNOWN: Final = {**ARCHITECTURES, **REARRANGED}
_STATES: Final = {"lfm2": "short convolutions", "lfm2moe": "short convolutions", "qwen3next": "delta nets"}
"""States of architectures that are not converted."""
_SHARD_BYTES: Final = 2 << 30
"""Size of a safetensors shard, which is held in memory until it is written."""
_STAGE: Final = "Converting GGUF"
_BF16: Final = GGMLQuantizationType.BF16
_AS_IN_FILE: Final = frozenset({GGMLQuantizationType.F32, GGMLQuantizationType.F16})
_IN_CONFIG: Final = (DIVISORS, "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that become fields of config.json."""


def convert(sources: Sequence[Path], target: Path, progress: Progress, *, keep_codes: bool = False) -> None:
    """Write config.json, safetensors, tokenizer and chat template into the empty folder `target`.

    `sources`: the parts of the model; the first one has the metadata.

    `keep_codes`: linear layers are loaded as integers with scales where the file has them; all others, and
    without it all layers, as their values. Costs about a second for every GB, and some seconds for the
    tokenizer.

    Raises:
        UnsupportedModel: Baton does not support the file's architecture, tokenizer or one of its features.
        OSError: `target` cannot be written; with ENOSPC, also before anything is, and its text has the sizes.
    """
    readers = [open_gguf(source) for source in sources]
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    metadata = Metadata(readers[0], tensors)
    if metadata.architecture not in _KNOWN:
        state = _STATES.get(metadata.architecture)
        has = f", which has {state}," if state else ""
        raise UnsupportedModel(
            f"GGUF architecture {metadata.architecture!r}{has} is not supported;"
            f" Baton converts {', '.join(_KNOWN)}"
        )
    conversion = _Conversion(metadata, tensors, keep_codes=keep_codes)
    _check_space(conversion.size, target)
    config, generation = _configs(metadata)
    if conversion.quantization is not None:
        config["quantization_config"] = conversion.quantization
    ModelSpec.from_config(config)  # fail before a conversion of minutes, not after it
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (target / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(metadata.get, target)
    _write_tensors(conversion, target, progress)


def _check_space(needed: int, target: Path) -> None:
    """`needed`: bytes of all weights."""
    free = shutil.disk_usage(target).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed and {free:,} free", str(target))


def _configs(metadata: Metadata) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and generation_config.json."""
    architecture = _KNOWN[metadata.architecture]
    heads, hidden = metadata.need("attention.head_count"), metadata.need("embedding_length")
    head_dim = metadata.model("attention.key_length") or hidden // heads
    config = {
        "architectures": [architecture.model_class],
        "model_type": architecture.model_type,
        "vocab_size": metadata.shapes["token_embd.weight"][0],
        "hidden_size": hidden,
        "intermediate_size": metadata.model("feed_forward_length"),
        "num_hidden_layers": metadata.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.model("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.need("context_length"),
        "rms_norm_eps": metadata.need("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope(metadata, head_dim),
        "tie_word_embeddings": "output.weight" not in metadata.shapes,
        "dtype": "float32",
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        **architecture.fields(metadata, head_dim),
    }
    if window := metadata.model("attention.sliding_window"):
        config |= {"sliding_window": window, "use_sliding_window": True}
    return config, {"eos_token_id": _end_tokens(metadata)}


def _end_tokens(metadata: Metadata) -> list[int]:
    """End of text and, if it is another token, end of a chat turn."""
    ids = (metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    return sorted({token for token in ids if token is not None})


class _Conversion:
    """The tensors of a file, as the folder has them."""

    def __init__(self, metadata: Metadata, tensors: Sequence[ReaderTensor], *, keep_codes: bool) -> None:
        self._metadata = metadata
        self._architecture: GgufArchitecture = _KNOWN[metadata.architecture]
        heads = metadata.need("attention.head_count")
        self._heads = {"attn_q": heads, "attn_k": metadata.model("attention.head_count_kv") or heads}
        last = num_layers(metadata)
        self.tensors = [
            tensor for tensor in tensors if tensor.name not in _IN_CONFIG and _layer(tensor.name) < last
        ]
        self._by_name = {tensor.name: tensor for tensor in self.tensors}
        has_codes = keep_codes and not self._architecture.mxfp4_experts
        out_of_order = self._architecture.not_coded(metadata, self._by_name)
        self._coded = _coded(self.tensors, out_of_order) if has_codes else frozenset()
        self.size = sum(_stored_bytes(tensor) for tensor in self.tensors)

    @property
    def quantization(self) -> dict[str, Any] | None:
        """quantization_config; None: all weights are loaded as their values."""
        if not self._coded:
            return None
        kinds = {tensor.tensor_type for tensor in self.tensors if tensor.name in self._coded}
        left_out = [
            self._name(tensor.name).removesuffix(".weight").partition(".{}.")[0]
            for tensor in self.tensors
            if _is_linear(tensor.name) and tensor.name not in self._coded
        ]
        return {
            "quant_method": "gguf",
            "group_size": min(GROUPS[kind] for kind in kinds),
            "offsets": bool(kinds & WITH_OFFSETS),
            "modules_to_not_convert": sorted(set(left_out)),
        }

    def stored(self, tensor: ReaderTensor) -> Iterator[tuple[str, Array]]:
        """Name and value of a tensor, or of each expert's part of it. `blocks.py` reads the names."""
        if self._architecture.mxfp4_experts and is_expert(tensor.name):
            yield from expert_tensors(tensor, self._by_name)
            return
        parts = self._architecture.rearrange(self._metadata, tensor, self._by_name)
        for part in [_part(tensor)] if parts is None else parts:
            yield from self._of_part(part, coded=tensor.name in self._coded)

    def _of_part(self, part: Part, *, coded: bool) -> Iterator[tuple[str, Array]]:
        name, (suffix, value) = self._name(part.name), _stored(part)
        if coded:
            name = f"{name.removesuffix('.weight')}.codes"
        value = self._ordered(value, part.name)
        if self._architecture.whole_norms and _is_factor(part.name):
            value = value - value.dtype.type(1)
        if "{}" not in name:
            yield name + suffix, np.ascontiguousarray(value)
            return
        for expert, of_expert in enumerate(value):
            yield name.format(expert) + suffix, np.ascontiguousarray(of_expert)

    def _name(self, name: str) -> str:
        """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
        modules = self._architecture.modules
        match name.split("."):
            case ["blk", layer, *rest] if ".".join(rest) in modules:
                return f"model.layers.{layer}.{modules['.'.join(rest)]}"
            case ["blk", layer, module, kind] if module in modules:
                return f"model.layers.{layer}.{modules[module]}.{kind}"
            case [module, kind] if module in MODULES:
                return f"{MODULES[module]}.{kind}"
        raise UnsupportedModel(
            f"the GGUF file holds a tensor {name}, which is part of no model that Baton converts"
        )

    def _ordered(self, value: Array, name: str) -> Array:
        """In Hugging Face's order and shape."""
        module = name.split(".")[-2]  # of a tensor within a layer without a kind: the number of its layer
        if self._architecture.pairs_features and module in self._heads:
            return _halves_apart(value, self._heads[module])
        return value[None] if module == "ffn_gate_inp_shexp" else value


def _layer(name: str) -> int:
    """-1 for tensors of no layer."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blk" else -1


def _is_linear(name: str) -> bool:
    """Whether a tensor is the matrix of a linear part."""
    return name.endswith(".weight") and name.split(".")[-2] in LINEAR


def _is_factor(name: str) -> bool:
    """Whether a tensor is the weight of a norm of hidden states, queries or keys."""
    return name.endswith("norm.weight") and not name.endswith(".ssm_norm.weight")


def _coded(tensors: Sequence[ReaderTensor], out_of_order: frozenset[str]) -> frozenset[str]:
    """Names of the matrices that are loaded as integers: they can be, and so can all with their format."""
    linear = {one.name: one.tensor_type in GROUPS for one in tensors if _is_linear(one.name)}
    dequantized = {name for name in linear if name.split(".")[-2] in DEQUANTIZED}
    kept = {name for name, can in linear.items() if can} - out_of_order - dequantized
    for name in linear.keys() - kept:
        if not name.startswith("blk."):
            continue
        _, layer, module, _ = name.split(".")
        merged = next((modules for modules in MERGED if module in modules), frozenset())
        kept -= {f"blk.{layer}.{one}.weight" for one in merged}
    return frozenset(kept)


def _stored_bytes(tensor: ReaderTensor) -> int:
    kind = tensor.tensor_type
    as_in_file = kind in (*GROUPS, *_AS_IN_FILE, _BF16, GGMLQuantizationType.MXFP4)
    return int(tensor.n_bytes) if as_in_file else 2 * int(tensor.n_elements)


def _part(tensor: ReaderTensor) -> Part:
    return Part(tensor.name, tensor.data, tensor.tensor_type)


def _stored(part: Part) -> tuple[str, Array]:
    """What is added to the tensor's name, and its values or its bytes [..., rows, bytes]."""
    kind = part.kind
    if kind is None or kind in _AS_IN_FILE:
        return "", part.value
    if kind in GROUPS or kind is _BF16:
        return f".{kind.name}", part.value.view(np.uint8)
    return "", dequantize(part.value, kind).astype(np.float16)


def _write_tensors(conversion: _Conversion, target: Path, progress: Progress) -> None:
    """Write all tensors, one shard at a time, and the index of the shards."""
    index: dict[str, str] = {}
    shard: dict[str, Array] = {}
    written = done = 0
    for position, tensor in enumerate(conversion.tensors, start=1):
        shard |= dict(conversion.stored(tensor))
        held = sum(value.nbytes for value in shard.values())
        if held >= _SHARD_BYTES or position == len(conversion.tensors):
            file = f"model-{len(set(index.values())) + 1:05d}.safetensors"
            save_file(shard, target / file, metadata={"format": "pt"})
            index |= dict.fromkeys(shard, file)
            shard, written = {}, written + held
        done += _stored_bytes(tensor)
        progress(_STAGE, done, conversion.size)
    content = {"metadata": {"total_size": written}, "weight_map": index}
    (target / "model.safetensors.index.json").write_text(json.dumps(content, indent=2), encoding="utf-8")


def _halves_apart(value: Array, num_heads: int) -> Array:
    """Undo llama.cpp's order of the features of a head.

    llama.cpp rotates neighbours (0, 1), (2, 3), ...; Hugging Face's layout pairs feature i with feature
    i + head_dim / 2.
    """
    pairs = value.shape[0] // num_heads // 2
    ordered = value.reshape(num_heads, pairs, 2, *value.shape[1:]).swapaxes(1, 2)
    return np.ascontiguousarray(ordered).reshape(value.shape)
