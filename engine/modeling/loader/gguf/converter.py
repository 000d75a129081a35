"""Converts a GGUF file to a Hugging Face folder.

GGUF packs weights, tokenizer and configuration in one file, quantized. Converting once to safetensors, of
float32 or of integers and scales, keeps the values exact; later starts load in a fraction of a second. Does
not import torch.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor, dequantize
from safetensors.numpy import save_file

from common.progress import Progress
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.modeling.loader.gguf.codes import GROUPS, WITH_OFFSETS, coded
from engine.modeling.loader.gguf.tokenizer import write_tokenizer

Array: TypeAlias = npt.NDArray[np.float32]
Config: TypeAlias = Mapping[str, Any]

_SHARD_BYTES: Final = 2 << 30
"""Size of a safetensors shard, which is held in memory until it is written."""

_STAGE: Final = "Converting GGUF"

_ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
"""`general.architecture` -> the class of config.json. GGUF files of Mistral and SmolLM2 say llama."""

_MODULES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_MODULES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_GEMMA3_MODULES: Final = _LAYER_MODULES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_DIVISORS: Final = "rope_freqs.weight"
_GEMMA3_27B_LAYERS: Final = 62
"""The one size whose scores are scaled by the width of the model per head; GGUF files do not state it."""


def convert(sources: Sequence[Path], target: Path, progress: Progress, *, keep_codes: bool = False) -> None:
    """Write config.json, safetensors, tokenizer and chat template into the empty folder `target`.

    `sources`: the parts of the model; the first one has the metadata.

    `keep_codes`: weights of linear layers stay integers with scales, if all of them are, in place of float32.
    Costs about a second for every 200 MB written, and some seconds for the tokenizer.

    Raises:
        UnsupportedModel: Baton does not support the file's architecture, tokenizer or one of its features.
        OSError: `target` cannot be written; with ENOSPC, also before anything is, and its text has the sizes.
    """
    readers = [_open(source) for source in sources]
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    _check_space(sum(4 * int(tensor.n_elements) for tensor in tensors), target)
    metadata = _Metadata(readers[0], tensors)
    config, generation = _configs(metadata)
    codes = _CodedWeights.of(tensors) if keep_codes else None
    if codes is not None:
        config["quantization_config"] = codes.config
    ModelSpec.from_config(config)  # fail before a conversion of minutes, not after it
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (target / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(metadata.get, target)
    _write_tensors(tensors, config, codes, target, progress)


class _Reader(GGUFReader):
    """Reads from a plain array over the mapped file: a slice of a numpy.memmap takes three times as long, and
    the vocabulary takes hundreds of thousands of them.
    """

    @property  # type: ignore[override]
    def data(self) -> npt.NDArray[np.uint8]:
        return self._data

    @data.setter
    def data(self, mapped: npt.NDArray[np.uint8]) -> None:
        self._data = mapped.view(np.ndarray)


def _check_space(needed: int, target: Path) -> None:
    """`needed`: bytes of all weights in float32, which is what is written at most."""
    free = shutil.disk_usage(target).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed and {free:,} free", str(target))


def _open(source: Path) -> GGUFReader:
    try:
        return _Reader(source)
    except ValueError as error:
        raise UnsupportedModel(f"{source} is no GGUF file that can be read: {error}") from error


class _Metadata:
    """The file's key-value pairs and the names of its tensors."""

    def __init__(self, reader: GGUFReader, tensors: Sequence[ReaderTensor]) -> None:
        self._fields = reader.fields
        self.shapes = {tensor.name: [int(n) for n in reversed(tensor.shape)] for tensor in tensors}
        self.divisors: list[float] = next(
            (tensor.data.tolist() for tensor in tensors if tensor.name == _DIVISORS), []
        )
        """Divisor of each rotary frequency; empty: none. llama3's scaling, without its parameters."""
        self.architecture = str(self.get("general.architecture"))

    def get(self, key: str) -> Any:
        """The value of `key`, or None."""
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def model(self, key: str) -> Any:
        """The value of `key` below the architecture's own prefix, or None."""
        return self.get(f"{self.architecture}.{key}")

    def need(self, key: str) -> Any:
        value = self.model(key)
        if value is None:
            raise UnsupportedModel(f"the GGUF file lacks {self.architecture}.{key}")
        return value


def _configs(metadata: _Metadata) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and generation_config.json."""
    if metadata.architecture not in _ARCHITECTURES:
        supported = ", ".join(_ARCHITECTURES)
        raise UnsupportedModel(
            f"GGUF architecture {metadata.architecture!r} is not supported; Baton converts {supported}"
        )
    heads, hidden = metadata.need("attention.head_count"), metadata.need("embedding_length")
    head_dim = metadata.model("attention.key_length") or hidden // heads
    config = {
        "architectures": [_ARCHITECTURES[metadata.architecture]],
        "model_type": metadata.architecture,
        "vocab_size": metadata.shapes["token_embd.weight"][0],
        "hidden_size": hidden,
        "intermediate_size": metadata.need("feed_forward_length"),
        "num_hidden_layers": metadata.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.model("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.need("context_length"),
        "rms_norm_eps": metadata.need("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(metadata, head_dim),
        "tie_word_embeddings": "output.weight" not in metadata.shapes,
        "dtype": "float32",
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if metadata.architecture == "gemma3":
        config |= _gemma3(metadata, hidden // heads, head_dim)
    if window := metadata.model("attention.sliding_window"):
        config |= {"sliding_window": window, "use_sliding_window": True}
    return config, {"eos_token_id": _end_tokens(metadata)}


def _gemma3(metadata: _Metadata, width_per_head: int, head_dim: int) -> dict[str, Any]:
    local = {"rope_type": "default", "rope_theta": metadata.model("rope.freq_base_swa") or 10000.0}
    largest = metadata.need("block_count") == _GEMMA3_27B_LAYERS
    return {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width_per_head if largest else head_dim,
        "rope_parameters": {"full_attention": _rope(metadata, head_dim), "sliding_attention": local},
    }


def _rope(metadata: _Metadata, head_dim: int) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": metadata.model("rope.freq_base") or 10000.0}
    if metadata.divisors:  # the only kind that takes divisors, here the same ones for all contexts
        same = {"short_factor": metadata.divisors, "long_factor": metadata.divisors, "attention_factor": 1.0}
        rope |= {"rope_type": "longrope", **same}
    if (rotated := metadata.model("rope.dimension_count")) not in (None, head_dim):
        rope["partial_rotary_factor"] = rotated / head_dim
    if (scaling := metadata.model("rope.scaling.type")) not in (None, "none"):
        rope |= {"rope_type": scaling, "factor": metadata.need("rope.scaling.factor")}
    if original := metadata.model("rope.scaling.original_context_length"):
        rope["original_max_position_embeddings"] = original
    return rope


def _end_tokens(metadata: _Metadata) -> list[int]:
    """End of text and, if it is another token, end of a chat turn."""
    ids = (metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    return sorted({token for token in ids if token is not None})


@dataclass(frozen=True, slots=True)
class _CodedWeights:
    """How the weights of linear layers are written as integers: all in the same groups."""

    group: int
    offsets: bool

    @classmethod
    def of(cls, tensors: Sequence[ReaderTensor]) -> _CodedWeights | None:
        """None if some weights are no integers with scales."""
        kinds = {tensor.tensor_type for tensor in tensors if _is_linear(tensor.name)}
        if not kinds <= GROUPS.keys():
            return None
        return cls(min(GROUPS[kind] for kind in kinds), bool(kinds & WITH_OFFSETS))

    @property
    def config(self) -> dict[str, Any]:
        return {"quant_method": "gguf", "group_size": self.group, "offsets": self.offsets}

    def tensors(self, tensor: ReaderTensor, config: Config) -> dict[str, npt.NDArray[Any]]:
        """Tensors by their names in the module."""
        parts = coded(tensor.data, tensor.tensor_type).in_groups_of(self.group)
        found: dict[str, npt.NDArray[Any]] = {"codes": parts.codes, "scales": parts.scales}
        if self.offsets:
            found["offsets"] = np.zeros_like(parts.scales) if parts.offsets is None else parts.offsets
        return {name: _ordered(value, tensor.name, config) for name, value in found.items()}


def _is_linear(name: str) -> bool:
    """Whether a tensor is the matrix of a layer's linear part."""
    match name.split("."):
        case ["blk", _, module, "weight"]:
            return not module.endswith("norm")
    return False


def _write_tensors(
    tensors: Sequence[ReaderTensor],
    config: Config,
    codes: _CodedWeights | None,
    target: Path,
    progress: Progress,
) -> None:
    """Write all tensors, one shard at a time, and the index of the shards; in float32 what is not coded."""
    stored = [tensor for tensor in tensors if tensor.name != _DIVISORS]
    total = sum(4 * int(tensor.n_elements) for tensor in stored)
    index: dict[str, str] = {}
    shard: dict[str, npt.NDArray[Any]] = {}
    written = done = 0
    is_gemma3 = config["model_type"] == "gemma3_text"
    for position, tensor in enumerate(stored, start=1):
        name = _name(tensor.name, _GEMMA3_MODULES if is_gemma3 else _LAYER_MODULES)
        if codes is not None and _is_linear(tensor.name):
            module = name.removesuffix("weight")
            shard |= {module + part: value for part, value in codes.tensors(tensor, config).items()}
        else:
            shard[name] = _value(tensor, config)
        held = sum(value.nbytes for value in shard.values())
        if held >= _SHARD_BYTES or position == len(stored):
            file = f"model-{len(set(index.values())) + 1:05d}.safetensors"
            save_file(shard, target / file, metadata={"format": "pt"})
            index |= dict.fromkeys(shard, file)
            shard, written = {}, written + held
        done += 4 * int(tensor.n_elements)
        progress(_STAGE, done, total)
    content = {"metadata": {"total_size": written}, "weight_map": index}
    (target / "model.safetensors.index.json").write_text(json.dumps(content, indent=2), encoding="utf-8")


def _name(name: str, layer_modules: Mapping[str, str]) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match name.split("."):
        case ["blk", layer, module, kind] if module in layer_modules:
            return f"model.layers.{layer}.{layer_modules[module]}.{kind}"
        case [module, kind] if module in _MODULES:
            return f"{_MODULES[module]}.{kind}"
    raise UnsupportedModel(
        f"the GGUF file holds a tensor {name}, which is part of no model that Baton converts"
    )


def _value(tensor: ReaderTensor, config: Config) -> Array:
    dequantized: Array = dequantize(tensor.data, tensor.tensor_type)
    value = _ordered(dequantized, tensor.name, config)
    if config["model_type"] == "gemma3_text" and tensor.name.endswith("norm.weight"):
        value = value - 1.0  # Hugging Face's difference to 1; llama.cpp stores the factor
    return np.ascontiguousarray(value, dtype=np.float32)


def _ordered(value: npt.NDArray[Any], name: str, config: Config) -> npt.NDArray[Any]:
    """The rows of a tensor, or of its scales, in Hugging Face's order."""
    if config["model_type"] == "llama" and ".attn_q." in name:
        return _halves_apart(value, config["num_attention_heads"])
    if config["model_type"] == "llama" and ".attn_k." in name:
        return _halves_apart(value, config["num_key_value_heads"])
    return value


def _halves_apart(value: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Undo llama.cpp's order of the features of a head.

    llama.cpp rotates neighbours (0, 1), (2, 3), ...; Hugging Face's layout pairs feature i with feature
    i + head_dim / 2.
    """
    pairs = value.shape[0] // num_heads // 2
    ordered = value.reshape(num_heads, pairs, 2, *value.shape[1:]).swapaxes(1, 2)
    return np.ascontiguousarray(ordered).reshape(value.shape)
