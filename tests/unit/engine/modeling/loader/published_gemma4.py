"""Gemma 4's checkpoints, which differ in more than their sizes."""

from __future__ import annotations

from typing import Any, Final

from tests.unit.engine.modeling.loader.published_accepted import LAYER_1, Accepted
from tests.unit.engine.modeling.loader.published_quantization import MODELOPT_NVFP4
from tests.unit.engine.modeling.loader.published_shapes import Config


def gemma4(**text: Any) -> Config:
    """Six layers of one of Gemma 4's sizes; `text`: where that differs from 31B."""
    of_31b = {
        "attention_k_eq_v": True,
        "enable_moe_block": False,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 5376,
        "hidden_size_per_layer_input": None,
        "intermediate_size": 21504,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        "max_position_embeddings": 262144,
        "model_type": "gemma4_text",
        "num_attention_heads": 32,
        "num_global_key_value_heads": 4,
        "num_hidden_layers": 6,
        "num_key_value_heads": 16,
        "num_kv_shared_layers": 0,
        "rms_norm_eps": 1e-06,
        "sliding_window": 1024,
        "tie_word_embeddings": True,
        "use_double_wide_mlp": False,
        "vocab_size": 262144,
    }
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": of_31b | text,
        "vision_config": {"model_type": "gemma4_vision"},
    }


GEMMA4: Final = [
    Accepted(
        "google/gemma-4-31B-it",
        gemma4(),
        None,
        {f"model.layers.5.self_attn.{name}": "plain" for name in ("q_proj", "k_proj", "o_proj", "k_norm")},
        ("model.vision_tower.patch_embedder.weight",),
    ),
    Accepted(
        "google/gemma-4-E2B-it, its layers that read the KV of others",
        gemma4(
            attention_k_eq_v=False,
            hidden_size=1536,
            hidden_size_per_layer_input=256,
            intermediate_size=6144,
            layer_types=[*["sliding_attention", "full_attention"] * 3],
            num_attention_heads=8,
            num_global_key_value_heads=None,
            num_key_value_heads=1,
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
        ),
        None,
        {
            "model.embed_tokens_per_layer": "plain",
            "model.layers.4.self_attn.q_proj": "plain",
            "model.layers.4.per_layer_input_gate": "plain",
        },
        ("model.language_model.layers.4.self_attn.k_proj.weight", "model.audio_tower.output_proj.weight"),
    ),
    Accepted(
        "nvidia/Gemma-4-26B-A4B-NVFP4, experts beside the MLP",
        gemma4(
            enable_moe_block=True,
            hidden_size=2816,
            intermediate_size=2112,
            moe_intermediate_size=704,
            num_attention_heads=16,
            num_experts=8,
            num_global_key_value_heads=2,
            num_key_value_heads=8,
            top_k_experts=4,
        ),
        MODELOPT_NVFP4 | {"ignore": ["lm_head", "model.language_model.layers.*.self_attn*"]},
        {
            LAYER_1 + "experts.7.up_proj": "nvfp4 modelopt",
            LAYER_1 + "mlp.down_proj": "nvfp4 modelopt",
            LAYER_1 + "self_attn.v_proj": "plain",
            LAYER_1 + "router.proj": "plain",
        },
    ),
]
