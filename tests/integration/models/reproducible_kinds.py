"""Small models of the kinds that `--reproducible` serves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.faults.support.small_model import save_small_model
from tests.integration.models.kinds_of_kv import windows
from tests.unit.engine.modeling.loader.quantizing import FP8_FORMATS, INT4_FORMATS, Format, rewrite

__all__ = ["KINDS"]


def _qwen3(**fields: Any) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**fields))


def _shared_experts(**fields: Any) -> PreTrainedModel:
    """A softmax chooses; a gate of one feature weighs the experts that compute all tokens."""
    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**fields, **experts, shared_expert_intermediate_size=40))


def _sigmoid_experts(**fields: Any) -> PreTrainedModel:
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
    groups = {"n_group": 4, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 1}
    return Glm4MoeForCausalLM(Glm4MoeConfig(**fields, **experts, **groups, head_dim=16))


def _gpt2(**fields: Any) -> PreTrainedModel:
    """Activations that torch would compute in another way at the end of a step's rows."""
    names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    names |= {"max_position_embeddings": "n_positions"}
    shape = {names[name]: value for name, value in fields.items() if name in names}
    others = ("vocab_size", "initializer_range", "bos_token_id", "eos_token_id")
    config = GPT2Config(**shape, **{name: fields[name] for name in others})
    return GPT2LMHeadModel(config)


def _quantized(format: Format, folder: Path) -> None:
    shape = {"hidden_size": 128, "intermediate_size": 128, "initializer_range": 0.2}
    save_small_model(folder / "source", **shape)
    rewrite(folder / "source", folder, folder / "dense", format)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "source" / name, folder / name)


KINDS: Final[Mapping[str, Callable[[Path], object]]] = {
    "full attention": save_small_model,
    "many heads": partial(save_small_model, hidden_size=64, num_attention_heads=8, num_key_value_heads=1),
    "qk norms": partial(save_small_model, family=_qwen3, head_dim=16),
    "windows": partial(save_small_model, family=windows),
    "long windows": partial(save_small_model, family=partial(windows, sliding_window=100)),
    "experts": partial(save_small_model, family=_shared_experts),
    "experts by sigmoids": partial(save_small_model, family=_sigmoid_experts),
    "gelu": partial(save_small_model, family=_gpt2),
    "4 bits": partial(_quantized, INT4_FORMATS["gptq with zero points"]),
    "fp8": partial(_quantized, FP8_FORMATS["fp8 per channel"]),
}
"""Writers of a model's folder, by name."""
