"""Fields that config.json may leave out, where transformers' class has another value than its relatives do.

A field that is given as null is not left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from engine.model_config.config_fields import Config
from engine.model_config.families import dense, gemma4

Fields: TypeAlias = dict[str, Any]

_MISTRAL: Final[Fields] = {"num_key_value_heads": 8, "sliding_window": 4096}
_WIDE_HEADS: Final[Fields] = {"num_key_value_heads": 8, "head_dim": 128}
_GLM: Final[Fields] = {"num_key_value_heads": 2, "attention_bias": True}
_QWEN3_VL: Final[Fields] = {"rope_theta": 500_000.0, "head_dim": 128}
_ERNIE: Final[Fields] = {"rope_theta": 500_000.0, "tie_word_embeddings": True}
_YARN: Final[Fields] = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}
_MINISTRAL3_ROPE: Final[Fields] = _YARN | {
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_GPT_OSS_ROPE: Final[Fields] = _YARN | {
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_DEEPSEEK_V3: Final[Fields] = {
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
}
_INDEXER: Final[Fields] = {"index_topk": 2048, "index_head_dim": 128}

_DEFAULTS: Final[Mapping[str, Fields]] = {
    "mistral": _MISTRAL,
    "mistral3": _MISTRAL,
    "ministral": _MISTRAL,
    "ministral3": _WIDE_HEADS | {"rope_parameters": _MINISTRAL3_ROPE},
    "mixtral": {"num_key_value_heads": 8, "rope_theta": 1_000_000.0},
    "smollm3": {"num_key_value_heads": 4, "rope_theta": 2_000_000.0, "tie_word_embeddings": True},
    "olmo3": {"rope_theta": 500_000.0, "sliding_window": 4096},
    "gemma2": {"num_key_value_heads": 4, "sliding_window": 4096},
    "gemma3": dense.GEMMA3_DEFAULTS,
    "gemma3_text": dense.GEMMA3_DEFAULTS,
    "gemma4": gemma4.DEFAULTS,
    "gemma4_text": gemma4.DEFAULTS,
    "gemma4_unified": gemma4.UNIFIED_DEFAULTS,
    "seed_oss": _WIDE_HEADS | {"attention_bias": True},
    "glm": _GLM,
    "glm4": _GLM,
    "exaone4": {"sliding_window": 4096},
    "ernie4_5": _ERNIE | {"num_key_value_heads": 2, "head_dim": 128},
    "ernie4_5_moe": _ERNIE
    | {"num_key_value_heads": 4, "moe_num_shared_experts": 2, "moe_layer_start_index": 1},
    "qwen2_5_vl": {"rope_theta": 1_000_000.0, "num_key_value_heads": 8},
    "qwen3_vl": _QWEN3_VL | {"num_key_value_heads": 32},
    "qwen3_vl_moe": _QWEN3_VL | {"num_key_value_heads": 16},
    "qwen3_moe": {"num_key_value_heads": 4},
    "minimax_m2": _WIDE_HEADS | {"rope_theta": 5_000_000.0},
    "hy_v3": _WIDE_HEADS | {"rope_theta": 11_158_840.0},
    "glm4_moe": {"num_key_value_heads": 8},
    "gpt_oss": {
        "num_key_value_heads": 8,
        "head_dim": 64,
        "attention_bias": True,
        "sliding_window": 128,
        "rope_theta": 150_000.0,
        "rope_parameters": _GPT_OSS_ROPE,
    },
    "qwen3_next": {"num_key_value_heads": 2, "head_dim": 256},
    "qwen3_5": {"num_key_value_heads": 4, "head_dim": 256},
    "qwen3_5_moe": {"num_key_value_heads": 2, "head_dim": 256},
    "deepseek_v2": {"n_shared_experts": 2, "q_lora_rank": 1536},
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3 | _INDEXER | {"index_n_heads": 64},
    "glm_moe_dsa": _DEEPSEEK_V3
    | _INDEXER
    | {"index_n_heads": 32, "q_lora_rank": 2048, "n_group": 1, "topk_group": 1},
    "kimi_linear": {
        "routed_scaling_factor": 2.446,
        "q_lora_rank": None,
        "topk_group": 1,
        "num_expert_group": 1,
        "moe_renormalize": True,
        "num_shared_experts": 1,
        "linear_head_dim": 128,
        "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4,
    },
    "nemotron_h": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "time_step_min": 0.001,
        "norm_topk_prob": True,
        "layer_norm_epsilon": 1e-5,
    },
    "granitemoehybrid": {"mamba_conv_bias": True, "mamba_n_groups": 1, "mamba_d_conv": 4},
    "glm4_moe_lite": {"n_shared_experts": 1, "routed_scaling_factor": 1.8, "q_lora_rank": 768},
}
"""Keyed by model type."""


def filled(config: Config, model_type: str) -> dict[str, Any]:
    """`config` with the defaults of its class. Those of the rotation count as one field, in two spellings."""
    defaults = _DEFAULTS.get(model_type, _DEFAULTS.get(model_type.removesuffix("_text"), {}))
    whole = {**defaults, **config}
    if not config.get("rope_parameters"):
        old = config.get("rope_scaling")
        whole["rope_parameters"] = None if old else defaults.get("rope_parameters")
    return whole
