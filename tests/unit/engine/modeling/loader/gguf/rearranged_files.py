"""Tiny models as GGUF files, whose tensors llama.cpp's converter rearranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, TokenType
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Ministral3Config,
    Ministral3ForCausalLM,
    PreTrainedModel,
)
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from tests.unit.engine.modeling.loader.gguf.llama_cpp_order import (
    GEMMA4,
    NO_PADDING,
    Tensors,
    of_deepseek,
    of_delta_nets,
    of_gemma4,
    of_latents,
    of_ministral3,
    of_qwen35,
    of_scaled_queries,
    of_two_head_sizes,
)
from tests.unit.engine.modeling.loader.gguf.tiny_files import (
    MODULES,
    TINY,
    VOCABULARY,
    packed,
    with_biases,
)

LATENT: Final[dict[str, Any]] = (
    TINY
    | NO_PADDING
    | {
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.5,
    }
)
YARN: Final[dict[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 16.0,
    "beta_slow": 1.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
DELTA: Final[dict[str, Any]] = (
    TINY
    | NO_PADDING
    | {
        "num_hidden_layers": 4,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 32,
    }
)
EXPERTS: Final[dict[str, Any]] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
NAMES: Final = MODULES | {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.gate": "ffn_gate_inp",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.out_proj": "ssm_out",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.conv1d": "ssm_conv1d",
    "router.proj": "ffn_gate_inp",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}
"""Modules of a layer with a weight, which most architectures name alike."""
OUTSIDE: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}


@dataclass(frozen=True)
class Written:
    architecture: str
    model: Callable[[], PreTrainedModel]
    modules: Callable[[Any, str, np.ndarray], Tensors]
    metadata: Callable[[GGUFWriter, Any], None]


FILES: Final[dict[str, Written]] = {
    "ministral 3": Written(
        "mistral3",
        lambda: Ministral3ForCausalLM(
            Ministral3Config(
                **TINY, head_dim=32, rope_parameters=YARN | {"llama_4_scaling_beta": 0.1}, **NO_PADDING
            )
        ),
        of_ministral3,
        of_scaled_queries,
    ),
    "deepseek v2": Written(
        "deepseek2",
        lambda: DeepseekV2ForCausalLM(
            DeepseekV2Config(**LATENT, q_lora_rank=None, n_group=None, topk_group=None)
        ),
        of_deepseek,
        of_latents,
    ),
    "deepseek v3": Written(
        "deepseek2",
        lambda: with_biases(
            DeepseekV3ForCausalLM(
                DeepseekV3Config(**LATENT, q_lora_rank=32, n_group=4, topk_group=2, rope_parameters=YARN)
            )
        ),
        of_deepseek,
        of_latents,
    ),
    "qwen3.5": Written(
        "qwen35", lambda: Qwen3_5ForCausalLM(Qwen3_5TextConfig(**DELTA)), of_qwen35, of_delta_nets
    ),
    "qwen3.5 with experts": Written(
        "qwen35moe",
        lambda: Qwen3_5MoeForCausalLM(
            Qwen3_5MoeTextConfig(**DELTA, **EXPERTS, shared_expert_intermediate_size=64)
        ),
        of_qwen35,
        of_delta_nets,
    ),
    "gemma4": Written(
        "gemma4",
        lambda: Gemma4ForCausalLM(
            Gemma4TextConfig(
                **GEMMA4,
                attention_k_eq_v=True,
                num_global_key_value_heads=1,
                hidden_size_per_layer_input=0,
            )
        ),
        of_gemma4,
        of_two_head_sizes,
    ),
    "gemma4 with shared layers": Written(
        "gemma4",
        lambda: Gemma4ForCausalLM(
            Gemma4TextConfig(
                **GEMMA4,
                num_kv_shared_layers=2,
                use_double_wide_mlp=True,
                hidden_size_per_layer_input=32,
                vocab_size_per_layer_input=96,
            )
        ),
        of_gemma4,
        of_two_head_sizes,
    ),
    "gemma4 with experts": Written(
        "gemma4",
        lambda: Gemma4ForCausalLM(
            Gemma4TextConfig(
                **GEMMA4,
                enable_moe_block=True,
                num_experts=4,
                top_k_experts=2,
                moe_intermediate_size=32,
                hidden_size_per_layer_input=0,
            )
        ),
        of_gemma4,
        of_two_head_sizes,
    ),
}


def random_model(written: Written) -> PreTrainedModel:
    torch.manual_seed(0)
    model = written.model().eval()
    model.set_attn_implementation("eager")
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms and decays start alike
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def tensors_of(written: Written, model: PreTrainedModel) -> Tensors:
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        value = tensor.numpy()
        if name in OUTSIDE:
            shifted = name == "model.norm.weight" and written.architecture.startswith("qwen35")
            yield OUTSIDE[name], value + 1 if shifted else value
            continue
        _, _, layer, module = name.split(".", 3)
        for part, of_part in written.modules(model.config, module, value):
            stem, _, kind = part.rpartition(".")
            if part == "mlp.experts.gate_up_proj":
                for which, half in zip(("gate", "up"), np.split(of_part, 2, axis=1), strict=True):
                    yield f"blk.{layer}.ffn_{which}_exps.weight", half
            elif part == "mlp.experts.down_proj":
                yield f"blk.{layer}.ffn_down_exps.weight", of_part
            else:
                yield f"blk.{layer}.{NAMES[stem]}.{kind}" if stem in NAMES else f"blk.{layer}.{part}", of_part


def write(
    path: Path, written: Written, model: PreTrainedModel, kind: Kind | Callable[[str], Kind] = Kind.F32
) -> None:
    config = model.config
    writer = GGUFWriter(path, written.architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    widths = [model.model.layers[n].mlp for n in range(config.num_hidden_layers)]
    if written.architecture == "gemma4" and config.use_double_wide_mlp:
        writer.add_feed_forward_length([mlp.gate_proj.out_features for mlp in widths])
    elif written.architecture != "qwen35moe":
        writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    written.metadata(writer, config)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(5)
    for name, value in tensors_of(written, model):
        small = value.ndim == 1 or "ffn_gate_inp" in name or "conv1d" in name
        raw = Kind.F32 if small else kind(name) if callable(kind) else kind
        writer.add_tensor(name, packed(np.ascontiguousarray(value), raw), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
