"""Small random models of each architecture, with heads of the sizes that GPU kernels are made for."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

VOCAB = 512

_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.08,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def build(name: str) -> PreTrainedModel:
    """float32, with weights that bfloat16 holds exactly, so that only arithmetic differs."""
    torch.manual_seed(0)
    match name:
        case "llama-64":
            model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**_SHAPE, head_dim=64))
        case "llama-128":
            model = LlamaForCausalLM(LlamaConfig(**_SHAPE, head_dim=128))
        case "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**{**_SHAPE, "num_attention_heads": 4}))
        case "qwen2-windows":
            kinds = ["sliding_attention", "full_attention", "sliding_attention"]
            model = Qwen2ForCausalLM(
                Qwen2Config(
                    **{**_SHAPE, "num_attention_heads": 4},
                    layer_types=kinds,
                    use_sliding_window=True,
                    sliding_window=40,
                )
            )
        case "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=128))
        case "mixtral":
            model = MixtralForCausalLM(MixtralConfig(**_SHAPE, num_local_experts=8, head_dim=64))
        case "qwen3-experts":
            model = Qwen3MoeForCausalLM(
                Qwen3MoeConfig(
                    **_SHAPE,
                    head_dim=128,
                    num_experts=16,
                    num_experts_per_tok=4,
                    moe_intermediate_size=128,
                    norm_topk_prob=True,
                )
            )
        case "glm4-experts":
            model = Glm4MoeForCausalLM(
                Glm4MoeConfig(
                    **_SHAPE,
                    head_dim=128,
                    use_qk_norm=True,
                    n_routed_experts=16,
                    num_experts_per_tok=4,
                    n_group=4,
                    topk_group=2,
                    moe_intermediate_size=128,
                )
            )
        case "deepseek":
            model = DeepseekV3ForCausalLM(
                DeepseekV3Config(
                    **{**_SHAPE, "num_key_value_heads": 8},
                    kv_lora_rank=512,
                    q_lora_rank=128,
                    qk_rope_head_dim=64,
                    qk_nope_head_dim=64,
                    v_head_dim=64,
                    head_dim=64,
                    first_k_dense_replace=3,
                    n_routed_experts=8,
                    num_experts_per_tok=2,
                    n_group=1,
                    topk_group=1,
                    moe_intermediate_size=128,
                )
            )
        case "qwen3.5":
            model = Qwen3_5ForCausalLM(
                Qwen3_5TextConfig(
                    **{**_SHAPE, "num_hidden_layers": 4},
                    head_dim=128,
                    linear_num_key_heads=2,
                    linear_num_value_heads=4,
                    linear_key_head_dim=64,
                    linear_value_head_dim=64,
                )
            )
        case "gpt2":
            model = GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=VOCAB,
                    n_positions=1024,
                    n_embd=256,
                    n_layer=3,
                    n_head=4,
                    bos_token_id=0,
                    eos_token_id=1,
                )
            )
        case _:
            raise ValueError(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            parameter.copy_(parameter.bfloat16().float())
    return model.eval()


def save(name: str, folder: Path) -> PreTrainedModel:
    model = build(name)
    model.save_pretrained(folder)
    return model
