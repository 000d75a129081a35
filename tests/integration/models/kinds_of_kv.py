"""Small models whose KV is not that of Llama: windows, heads of two sizes, latents, recurrent states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
)
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

__all__ = [
    "KINDS",
    "chosen",
    "chosen_together",
    "latents",
    "latents_v2",
    "mamba",
    "other_heads",
    "states",
    "windows",
]

_LATENT: Final[dict[str, Any]] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}


def windows(**fields: Any) -> PreTrainedModel:
    """Not tied: scaled embeddings of large weights would make every answer repeat one token."""
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    fields = {"sliding_window": 11} | fields | {"head_dim": 8, "tie_word_embeddings": False}
    fields |= {"num_hidden_layers": len(types), "layer_types": types}
    return Gemma3ForCausalLM(Gemma3TextConfig(**fields, query_pre_attn_scalar=8))


def other_heads(**fields: Any) -> PreTrainedModel:
    """Heads of two sizes, and layers that read the keys and values of others."""
    types = ["sliding_attention", "full_attention", "sliding_attention"] * 2
    types[-1] = "full_attention"
    fields |= {"num_hidden_layers": len(types), "layer_types": types, "num_kv_shared_layers": 2}
    sizes = {"head_dim": 8, "global_head_dim": 16, "sliding_window": 11, "hidden_size_per_layer_input": 4}
    vocab = {"vocab_size_per_layer_input": fields["vocab_size"], "tie_word_embeddings": False}
    return Gemma4ForCausalLM(Gemma4TextConfig(**(fields | sizes | vocab)))


def latents(**fields: Any) -> PreTrainedModel:
    groups = {"n_group": 4, "topk_group": 2, "q_lora_rank": 20}
    return DeepseekV3ForCausalLM(DeepseekV3Config(**(fields | _LATENT | groups)))


def latents_v2(**fields: Any) -> PreTrainedModel:
    config = DeepseekV2Config(**(fields | _LATENT), q_lora_rank=None, n_shared_experts=2)
    return DeepseekV2ForCausalLM(config)


_INDEXER: Final[dict[str, Any]] = {"index_topk": 11, "index_head_dim": 8, "index_n_heads": 24}
"""A row has as many features as that of `latents`. So many heads that hardly a score is 0: transformers does
not say which of equal ones it chooses."""


def chosen(**fields: Any) -> PreTrainedModel:
    """Latents, of which a token attends to those that an indexer chooses."""
    sizes = fields | _LATENT | _INDEXER | {"kv_lora_rank": 16, "q_lora_rank": 20}
    return DeepseekV32ForCausalLM(DeepseekV32Config(**sizes, n_group=4, topk_group=2))


def chosen_together(**fields: Any) -> PreTrainedModel:
    """The same, of which layers share an indexer."""
    sizes = fields | _LATENT | _INDEXER | {"kv_lora_rank": 16, "q_lora_rank": 20}
    kinds = ["full", "shared", "full"][: fields["num_hidden_layers"]]
    return GlmMoeDsaForCausalLM(GlmMoeDsaConfig(**sizes, indexer_types=kinds))


def states(**fields: Any) -> PreTrainedModel:
    linear = {f"linear_{what}": 8 for what in ("key_head_dim", "value_head_dim")}
    linear |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    types = ["linear_attention", "full_attention"] * 2
    fields |= {"head_dim": 8, "num_hidden_layers": len(types), "layer_types": types}
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**fields, **linear))


def mamba(**fields: Any) -> PreTrainedModel:
    """Steps are far from the smallest one: transformers applies it to prompts only."""
    sizes = {"ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "head_dim": 8}
    fields = {name: value for name, value in fields.items() if name != "num_hidden_layers"} | sizes
    kinds = ["linear_attention", "mlp", "full_attention", "linear_attention", "full_attention"]
    config = NemotronHConfig(**fields, layers_block_type=kinds, time_step_min=1e-9, chunk_size=16)
    return NemotronHForCausalLM(config)


KINDS: Final[list[Callable[..., PreTrainedModel]]] = [windows, other_heads, latents, states]
