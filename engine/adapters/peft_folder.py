"""Reads LoRA adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from math import frexp
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from engine.errors import AdapterRefused

DIGEST_BYTES: Final = 16
CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
_TENSOR: Final = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])(\.default)?\.weight")
_OF_VOCABULARY: Final = re.compile(r"\.lora_embedding_[AB]|\.base_layer\.weight$")
"""Tensors of adapters of embeddings, and the weights of adapted heads and embeddings that PEFT saves too."""

_LEAST_EXACT: Final = 2.0**-10
"""Powers of two from this to its inverse scale weights of bfloat16 without rounding or overflow."""

_REFUSED: Final[Mapping[str, str]] = {
    "use_dora": "DoRA",
    "modules_to_save": "modules_to_save",
    "trainable_token_indices": "trainable_token_indices",
    "target_parameters": "target_parameters (experts)",
    "lora_bias": "lora_bias",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
    "layer_replication": "layer_replication",
}
"""Options under which an adapter is more than the pairs of matrices."""
_PLAIN_STARTS: Final = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base model as it is."""


@dataclass(frozen=True, slots=True)
class LowRankPair:
    """Two matrices, whose product is added to a weight [out, in]."""

    a: Tensor
    """[r, in]"""
    b: Tensor
    """[out, r], times the adapter's scale."""

    @property
    def rank(self) -> int:
        return len(self.a)


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    name: str
    path: Path
    digest: bytes
    """Hash of both files."""
    pairs: Mapping[str, LowRankPair]
    """Pairs by modules of the base model."""
    invocation: tuple[int, ...] = ()
    """Tokens that activate it (aLoRA); empty: it is used from the first token on."""

    @property
    def rank(self) -> int:
        """The largest."""
        return max(pair.rank for pair in self.pairs.values())

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of modules, without those of their layers."""
        return tuple(sorted({name.rpartition(".")[2] for name in self.pairs}))


def content_hash(described: bytes) -> blake2b:
    """The hash of an adapter with this configuration file, to be updated with its file of weights."""
    digest = blake2b(digest_size=DIGEST_BYTES, person=b"baton adapter")
    digest.update(len(described).to_bytes(8, "little") + described)
    return digest


def read_adapter(name: str, path: Path) -> StoredAdapter:
    """Raises AdapterRefused for what is not an adapter, or not one that adds pairs of matrices alone."""
    try:
        described, stored = (path / CONFIG_FILE).read_bytes(), (path / WEIGHTS_FILE).read_bytes()
    except OSError as error:
        raise AdapterRefused(f"the adapter {name} cannot be read: {error}") from None
    digest = content_hash(described)
    with ThreadPoolExecutor(1) as other:  # hashing takes as long as all else, without the interpreter lock
        hashing = other.submit(digest.update, stored)
        try:
            config, tensors = json.loads(described), load(stored)
            pairs, invocation = _pairs(config, tensors), _invocation(config)
        except (ValueError, SafetensorError) as error:
            raise AdapterRefused(f"the adapter {name} in {path} cannot be served: {error}") from None
        hashing.result()
    return StoredAdapter(name, path, digest.digest(), pairs, invocation)


def _invocation(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Raises ValueError."""
    tokens = config.get("alora_invocation_tokens") or []
    if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
        raise ValueError(f"alora_invocation_tokens in {CONFIG_FILE} is no list of token ids")
    return tuple(tokens)


def _pairs(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, LowRankPair]:
    """Raises ValueError."""
    _check(config)
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None and _OF_VOCABULARY.search(name):
            raise ValueError(
                f"it changes embeddings or the head ({name}), which have no slots for adapters: leave them"
                " out of target_modules"
            )
        if match is None:
            raise ValueError(f"{name} is no half of a pair of a linear layer")
        halves.setdefault(match["module"].removeprefix(_PREFIX), {})[match["half"]] = tensor
    if not halves:
        raise ValueError("it has no tensors")
    return {module: _pair(config, module, found) for module, found in sorted(halves.items())}


def _check(config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise ValueError(f"peft_type {config.get('peft_type')} is not supported: only LORA is")
    for option, what in _REFUSED.items():
        if config.get(option):
            raise ValueError(f"{what} is not supported ({option} in {CONFIG_FILE})")
    if config.get("bias", "none") != "none":
        raise ValueError(f"trained biases are not supported (bias {config['bias']})")
    start = config.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        raise ValueError(f"init_lora_weights {start} changes the base model; save the adapter as plain LoRA")


def _pair(config: Mapping[str, Any], module: str, halves: Mapping[str, Tensor]) -> LowRankPair:
    if len(halves) < 2:
        raise ValueError(f"{module} has half a pair: lora_{next(iter(halves))} alone")
    if not _is_target(config.get("target_modules"), module):
        raise ValueError(f"{module} has tensors, but target_modules does not name it")
    a, b = halves["A"], halves["B"]
    if a.dim() != 2 or b.dim() != 2 or len(a) != b.shape[1]:
        raise ValueError(f"{module} has matrices of shapes {[*a.shape]} and {[*b.shape]}")
    rank = _of_pattern(config.get("rank_pattern") or {}, module, config["r"])
    if rank != len(a):
        raise ValueError(f"{module} has matrices of rank {len(a)}, but {CONFIG_FILE} says {rank}")
    if not (_are_finite(a) and _are_finite(b)):
        raise ValueError(f"{module} has numbers that are not finite")
    alpha = _of_pattern(config.get("alpha_pattern") or {}, module, config["lora_alpha"])
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    return LowRankPair(a, _scaled(b, scale))


def _are_finite(x: Tensor) -> bool:
    """Whether all numbers are. In bfloat16, `isfinite` takes ten times as long."""
    return not x.numel() or bool(torch.stack(x.aminmax()).isfinite().all())


def _scaled(b: Tensor, scale: float) -> Tensor:
    """`b` times `scale`, in float32 unless that is exact in its own dtype."""
    if b.dtype == torch.bfloat16 and frexp(scale)[0] == 0.5 and _LEAST_EXACT <= scale <= 1 / _LEAST_EXACT:
        return b if scale == 1 else b * scale
    return b.to(torch.float32) * scale


def _is_target(targets: str | Sequence[str] | None, module: str) -> bool:
    """A list of ends of names, or a regular expression for whole names."""
    if isinstance(targets, str):
        return targets == "all-linear" or re.fullmatch(targets, module) is not None
    return any(module == target or module.endswith(f".{target}") for target in targets or ())


def _of_pattern(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first key that matches the end of the name, as in PEFT."""
    keys = (key for key in pattern if re.match(rf"(.*\.)?({key})$", module))
    return pattern.get(next(keys, ""), default)
