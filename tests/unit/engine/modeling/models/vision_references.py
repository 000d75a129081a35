"""Tiny random checkpoints of models of text and images, made by transformers."""

from __future__ import annotations

import torch
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLVisionConfig,
    Ministral3Config,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PixtralVisionConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from tests.unit.engine.modeling.models.references import EXPERTS, NO_PADDING, TINY, YARN


def with_vision(name: str) -> PreTrainedModel:
    """A model of text and images whose language model is tiny, and the rest tinier."""
    torch.manual_seed(0)
    text = TINY | {"head_dim": 16}
    eye = {"hidden_size": 16, "intermediate_size": 16}
    if name == "mistral 3":
        yarn = YARN | {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 40}
        language = Ministral3Config(**text, rope_parameters=yarn)
        vision = PixtralVisionConfig(
            **eye, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16
        )
        return Mistral3ForConditionalGeneration(Mistral3Config(text_config=language, vision_config=vision))
    if name == "qwen2.5-vl":
        text = TINY | {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, **NO_PADDING}
        eye |= {"depth": 1, "num_heads": 2, "out_hidden_size": 48, "fullatt_block_indexes": [0]}
        return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=eye))
    if name == "internvl":
        config = InternVLConfig(
            text_config=Qwen3Config(**text),
            vision_config=InternVLVisionConfig(
                **eye, num_hidden_layers=1, num_attention_heads=2, image_size=[32, 32], patch_size=[16, 16]
            ),
        )
        return InternVLForConditionalGeneration(config)
    if name == "gemma4":
        language = TINY | {"head_dim": 8, "global_head_dim": 16, "sliding_window": 20}
        language |= {"eos_token_id": None, "bos_token_id": None, "initializer_range": 0.05}
        language |= {"vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8}
        language |= {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}
        eye |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
        return Gemma4ForConditionalGeneration(
            Gemma4Config(text_config=language, vision_config=eye, audio_config=None)
        )
    if name == "smolvlm":
        eye |= {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 16}
        config = SmolVLMConfig(
            text_config=TINY | {"model_type": "llama", "pad_token_id": None},
            vision_config=eye,
            scale_factor=2,
            tie_word_embeddings=False,
        )
        return SmolVLMForConditionalGeneration(config)
    sections = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    if name == "qwen3-vl with experts":
        experts = EXPERTS | {"moe_intermediate_size": 40, "tie_word_embeddings": False}
        config = Qwen3VLMoeConfig(
            text_config=text | experts | {"rope_parameters": sections | {"mrope_interleaved": True}},
            vision_config=eye
            | {"depth": 1, "num_heads": 2, "out_hidden_size": 48, "deepstack_visual_indexes": []},
            tie_word_embeddings=False,
        )
        return Qwen3VLMoeForConditionalGeneration(config)
    config = Qwen3VLConfig(
        text_config=text | {"rope_parameters": sections | {"mrope_interleaved": True}},
        vision_config=eye
        | {"depth": 1, "num_heads": 2, "out_hidden_size": 48, "deepstack_visual_indexes": []},
    )
    return Qwen3VLForConditionalGeneration(config)
