"""Tiny random models with Mamba2 or Kimi delta attention, made by transformers."""

from __future__ import annotations

from typing import Any

from transformers import (
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    KimiLinearConfig,
    KimiLinearForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
)


def nemotron_h(shape: dict[str, Any], kinds: list[str], smallest_step: float = 1e-9) -> PreTrainedModel:
    """`smallest_step`: transformers applies it to prompts only."""
    shape = shape | {"head_dim": 16, "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 6}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
    experts |= {"moe_shared_expert_intermediate_size": 40, "routed_scaling_factor": 1.5}
    del shape["num_hidden_layers"]
    config = NemotronHConfig(
        **shape,
        **experts,
        layers_block_type=kinds,
        n_groups=4,
        chunk_size=16,
        time_step_min=smallest_step,
    )
    model = NemotronHForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.weight"):
            parameter.data.normal_(std=0.5)
    return model


def granite_hybrid(shape: dict[str, Any]) -> PreTrainedModel:
    factors = {"embedding_multiplier": 6.0, "attention_multiplier": 0.2}
    factors |= {"residual_multiplier": 0.3, "logits_scaling": 4.0}
    states = {"mamba_n_heads": 8, "mamba_d_head": 12, "mamba_d_state": 8, "mamba_n_groups": 4}
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    config = GraniteMoeHybridConfig(
        **shape, **factors, **states, layer_types=kinds, mamba_chunk_size=16, shared_intermediate_size=40
    )
    model = GraniteMoeHybridForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.weight"):
            parameter.data.normal_(std=0.5)
    return model


def kimi_linear(shape: dict[str, Any]) -> PreTrainedModel:
    latent = {"kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
    experts |= {"n_group": 4, "topk_group": 2}
    kinds = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
    shape = shape | {"num_hidden_layers": len(kinds), "num_key_value_heads": shape["num_attention_heads"]}
    linear = {"linear_head_dim": 8, "linear_num_heads": 8, "layer_types": kinds}
    model = KimiLinearForCausalLM(KimiLinearConfig(**shape, **latent, **experts, **linear))
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.weight"):
            parameter.data.normal_(std=0.5)
    return model
