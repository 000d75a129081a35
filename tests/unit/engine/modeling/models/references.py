"""Tiny random checkpoints of every architecture, made by transformers, which is their oracle."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Exaone4Config,
    Exaone4ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Glm4Config,
    Glm4ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    HYV3Config,
    HYV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from engine.modeling.models.base import CausalLM
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.models.hybrid_references import granite_hybrid, kimi_linear, nemotron_h
from tests.unit.engine.modeling.models.reference_names import RECURRENT

TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,  # wide, or every token would get about the same logits
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
ROUTED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "head_dim": 16,
}
LATENT = {
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "head_dim": 8,
}
INDEXER = {"index_topk": 12, "index_head_dim": 16, "index_n_heads": 24}
"""So many heads that hardly a score is 0: transformers does not say which of equal ones are chosen."""
DELTA = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 128,
    "rope_theta": 500.0,
}
NO_PADDING: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500.0,
}


def reference(name: str, num_heads: int = 6) -> PreTrainedModel:
    torch.manual_seed(0)
    tiny = TINY | {"num_attention_heads": num_heads}
    match name:
        case "llama":
            model = LlamaForCausalLM(LlamaConfig(**tiny))
        case "llama with tied embeddings":
            model = LlamaForCausalLM(LlamaConfig(**tiny, tie_word_embeddings=True))
        case "llama with every bias":
            model = LlamaForCausalLM(LlamaConfig(**tiny, attention_bias=True, mlp_bias=True))
        case "llama with linear scaling":
            model = LlamaForCausalLM(LlamaConfig(**tiny, rope_parameters=LINEAR))
        case "llama 3":
            model = LlamaForCausalLM(LlamaConfig(**tiny, rope_parameters=LLAMA3))
        case "mistral":
            model = MistralForCausalLM(MistralConfig(**tiny, sliding_window=None, head_dim=16))
        case "mistral with windows":
            model = MistralForCausalLM(MistralConfig(**tiny, sliding_window=20))
        case "llama with yarn":
            model = LlamaForCausalLM(LlamaConfig(**tiny, rope_parameters=YARN))
        case "phi3":
            model = Phi3ForCausalLM(Phi3Config(**tiny, sliding_window=50, rope_parameters=ROPE, **NO_PADDING))
        case "phi3 with longrope":
            longrope = {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.5, 2.0, 2.0][: 24 // num_heads],
                "long_factor": [2.0, 9.0, 9.0, 30.0][: 24 // num_heads],
            }
            config = Phi3Config(
                **(tiny | {"hidden_size": 96}),
                **NO_PADDING,
                original_max_position_embeddings=300,
                rope_parameters=ROPE | longrope | {"partial_rotary_factor": 0.5},
            )
            model = Phi3ForCausalLM(config)
        case "smollm3":
            model = SmolLM3ForCausalLM(SmolLM3Config(**tiny, **NO_PADDING, no_rope_layer_interval=2))
        case "olmo2":
            model = Olmo2ForCausalLM(Olmo2Config(**tiny, **NO_PADDING))
        case "olmo3":
            kinds = ["sliding_attention", "full_attention", "sliding_attention"]
            ropes = {"full_attention": YARN, "sliding_attention": ROPE}
            config = Olmo3Config(
                **tiny, **NO_PADDING, sliding_window=20, layer_types=kinds, rope_parameters=ropes
            )
            model = Olmo3ForCausalLM(config)
        case "gemma2":
            config = Gemma2Config(
                **tiny, **NO_PADDING, head_dim=16, sliding_window=20, query_pre_attn_scalar=24
            )
            config.attn_logit_softcapping, config.final_logit_softcapping = 2.0, 5.0
            model = Gemma2ForCausalLM(config)
        case "gemma3":
            config = Gemma3TextConfig(
                **tiny,
                **NO_PADDING,
                head_dim=16,
                sliding_window=20,
                sliding_window_pattern=2,
                query_pre_attn_scalar=24,
                rope_parameters={"full_attention": LINEAR, "sliding_attention": ROPE | {"rope_theta": 100.0}},
            )
            model = Gemma3ForCausalLM(config)
        case "gemma4":
            shape = {
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "hidden_size_per_layer_input": 0,
            }
            model = gemma4(tiny | shape | {"final_logit_softcapping": 5.0})
        case "gemma4 with shared layers":
            shape = {"num_hidden_layers": 7, "num_kv_shared_layers": 3, "use_double_wide_mlp": True}
            model = gemma4(
                tiny | shape | {"vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8}
            )
        case "gemma4 with experts":
            shape = {
                "enable_moe_block": True,
                "num_experts": 8,
                "top_k_experts": 3,
                "moe_intermediate_size": 24,
            }
            model = gemma4(tiny | shape | {"hidden_size_per_layer_input": 0})
        case "qwen2 with windows":
            config = Qwen2Config(**tiny, sliding_window=20, use_sliding_window=True, max_window_layers=1)
            model = Qwen2ForCausalLM(config)
        case "gpt-oss":
            config = GptOssConfig(
                **tiny, num_local_experts=5, num_experts_per_tok=2, head_dim=16, sliding_window=20
            )
            config.rope_parameters = YARN | {"truncate": False}
            model = GptOssForCausalLM(config)
        case "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**tiny))
        case "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**tiny, head_dim=16, tie_word_embeddings=True))
        case "mixtral":
            model = MixtralForCausalLM(MixtralConfig(**tiny, num_local_experts=5))
        case "qwen2 with experts":
            model = Qwen2MoeForCausalLM(
                Qwen2MoeConfig(**tiny, **EXPERTS, shared_expert_intermediate_size=40, mlp_only_layers=[1])
            )
        case "qwen3 with experts":
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**tiny, **EXPERTS, head_dim=16, norm_topk_prob=True))
        case "qwen3 with experts in every other layer":
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**tiny, **EXPERTS, decoder_sparse_step=2))
        case "olmoe":
            model = OlmoeForCausalLM(
                OlmoeConfig(**tiny, num_experts=8, num_experts_per_tok=3, eos_token_id=None)
            )
        case "glm4 with experts":
            model = Glm4MoeForCausalLM(Glm4MoeConfig(**tiny, **ROUTED, use_qk_norm=True, attention_bias=True))
        case "glm4 with experts in groups":
            groups = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "norm_topk_prob": False}
            model = Glm4MoeForCausalLM(Glm4MoeConfig(**tiny, **ROUTED, **groups, n_shared_experts=2))
        case "deepseek v2":
            shape = tiny | NO_PADDING | ROUTED | LATENT | {"num_key_value_heads": num_heads}
            config = DeepseekV2Config(**shape, q_lora_rank=None, n_shared_experts=2, first_k_dense_replace=1)
            model = DeepseekV2ForCausalLM(config)
        case "deepseek v2 in groups":
            shape = tiny | NO_PADDING | ROUTED | LATENT | {"num_key_value_heads": num_heads}
            groups = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
            config = DeepseekV2Config(**shape, **groups, q_lora_rank=20, routed_scaling_factor=1.5)
            model = DeepseekV2ForCausalLM(config)
        case "deepseek v3":
            shape = tiny | NO_PADDING | ROUTED | LATENT | {"num_key_value_heads": num_heads}
            yarn = YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}
            groups = {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "q_lora_rank": 20}
            model = DeepseekV3ForCausalLM(DeepseekV3Config(**shape, **groups, rope_parameters=yarn))
        case "deepseek v3.2":
            shape = tiny | NO_PADDING | ROUTED | LATENT | INDEXER | {"num_key_value_heads": num_heads}
            yarn = YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}
            groups = {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "q_lora_rank": 20}
            config = DeepseekV32Config(**shape, **groups, rope_parameters=yarn)
            model = DeepseekV32ForCausalLM(config)
        case "glm5":
            shape = tiny | NO_PADDING | ROUTED | LATENT | INDEXER | {"num_key_value_heads": num_heads}
            kinds = {
                "indexer_types": ["full", "shared", "full"],
                "mlp_layer_types": ["dense", "sparse", "dense"],
            }
            model = GlmMoeDsaForCausalLM(GlmMoeDsaConfig(**shape, **kinds, q_lora_rank=20))
        case "glm4 moe lite":
            shape = (
                tiny | NO_PADDING | ROUTED | LATENT | {"num_key_value_heads": num_heads, "q_lora_rank": 20}
            )
            del shape["head_dim"]
            model = Glm4MoeLiteForCausalLM(Glm4MoeLiteConfig(**shape))
        case "qwen3-next":
            shape = tiny | DELTA | EXPERTS | {"shared_expert_intermediate_size": 40}
            model = Qwen3NextForCausalLM(
                Qwen3NextConfig(**shape, mlp_only_layers=[1], full_attention_interval=2)
            )
        case "qwen3.5":
            model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**(tiny | DELTA)))
        case "qwen3.5 with experts":
            shape = tiny | DELTA | EXPERTS | {"shared_expert_intermediate_size": 40}
            del shape["intermediate_size"]
            model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**shape))
        case "nemotron-h":
            kinds = ["linear_attention", "mlp", "full_attention", "moe", "linear_attention", "full_attention"]
            model = nemotron_h(tiny | NO_PADDING, kinds)
        case "nemotron-h with latent experts":
            kinds = ["linear_attention", "moe", "linear_attention", "moe", "full_attention", "moe"]
            model = nemotron_h(
                tiny | NO_PADDING | {"moe_latent_size": 20, "n_group": 4, "topk_group": 2}, kinds
            )
        case "kimi linear":
            model = kimi_linear(tiny | NO_PADDING)
        case "granite 4":
            experts = {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24}
            model = granite_hybrid(tiny | experts)
        case "granite 4 without experts":
            model = granite_hybrid(tiny | {"num_local_experts": 0, "position_embedding_type": "rope"})
        case "seed-oss":
            model = SeedOssForCausalLM(SeedOssConfig(**tiny, head_dim=16, attention_out_bias=True))
        case "granite":
            factors = {"embedding_multiplier": 6.0, "attention_multiplier": 0.2}
            factors |= {"residual_multiplier": 0.3, "logits_scaling": 4.0}
            model = GraniteForCausalLM(GraniteConfig(**tiny, **factors))
        case "glm":
            config = GlmConfig(**tiny, **NO_PADDING, head_dim=16, attention_bias=True)
            model = GlmForCausalLM(config)
        case "glm4":
            model = Glm4ForCausalLM(Glm4Config(**tiny, **NO_PADDING, head_dim=16))
        case "exaone4":
            model = Exaone4ForCausalLM(Exaone4Config(**tiny, sliding_window=20, sliding_window_pattern=2))
        case "exaone4 without windows":
            kinds = ["full_attention"] * 3
            model = Exaone4ForCausalLM(Exaone4Config(**tiny, sliding_window=None, layer_types=kinds))
        case "ernie 4.5":
            model = Ernie4_5ForCausalLM(Ernie4_5Config(**tiny, head_dim=16, use_bias=True))
        case "ernie 4.5 with experts":
            experts = {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 24}
            model = Ernie4_5_MoeForCausalLM(Ernie4_5_MoeConfig(**tiny, **experts))
            for name, parameter in model.named_parameters():
                if name.endswith("e_score_correction_bias"):
                    parameter.data.uniform_(-0.1, 0.1)
        case "minimax m2":
            rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
            shape = tiny | NO_PADDING | {"head_dim": 16, "intermediate_size": 24, "rope_parameters": rope}
            config = MiniMaxM2Config(**shape, num_local_experts=8, num_experts_per_tok=3)
            model = MiniMaxM2ForCausalLM(config)
        case "hy3":
            shape = tiny | NO_PADDING | EXPERTS | {"head_dim": 16}
            model = HYV3ForCausalLM(HYV3Config(**shape, router_scaling_factor=1.7, num_shared_experts=2))
        case "ministral 3":
            yarn = YARN | {"llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}
            yarn |= {"original_max_position_embeddings": 64}
            model = Ministral3ForCausalLM(Ministral3Config(**tiny, head_dim=16, rope_parameters=yarn))
        case "gpt2":
            config = GPT2Config(
                vocab_size=97, n_embd=48, n_head=num_heads, n_layer=3, n_positions=512, initializer_range=0.1
            )
            model = GPT2LMHeadModel(config)
    model.set_attn_implementation("eager")  # others leave out soft caps or sinks
    for key, buffer in model.named_buffers():
        if key.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn_like(buffer) * 0.2)
        if key.endswith("layer_scalar"):
            buffer.copy_(0.8 + 0.1 * torch.rand_like(buffer))
    # Biases and norms start as zeros and ones: swapped or forgotten, they would go unnoticed.
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    if name.startswith("gemma4"):  # its scores are not divided, and large ones amplify rounding
        for key, parameter in model.named_parameters():
            parameter.data *= 0.3 if key.endswith("q_norm.weight") else 1.0
    return model.eval()


def gemma4(shape: dict[str, Any]) -> PreTrainedModel:
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"] * 2
    layers = max(4, shape["num_hidden_layers"])
    shape |= {"num_hidden_layers": layers, "layer_types": [*kinds[: layers - 1], "full_attention"]}
    return Gemma4ForCausalLM(
        Gemma4TextConfig(**shape, **NO_PADDING, head_dim=8, global_head_dim=16, sliding_window=20)
    )


def tolerance(name: str) -> float:
    """Tolerance of logits. With delta nets, transformers' recurrent and chunked forms differ by up to 6e-5
    here. Gemma 4 divides no scores and normalises values: transformers in 32 bits differs from itself in 64
    by 1e-5.
    """
    return 1e-4 if name in RECURRENT or name.startswith("gemma4") else 1e-5


@torch.inference_mode()
def logits(model: CausalLM, ids: Tensor) -> Tensor:
    return model.logits(model(ids, torch.arange(len(ids)), DenseAttention(model)))
