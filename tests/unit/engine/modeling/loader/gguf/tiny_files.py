"""Tiny models as GGUF files, with the names and the order of tensors that llama.cpp's converter writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGUFWriter, TokenType, quantize
from gguf import GGMLQuantizationType as Kind
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
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
)

from common.progress import silent
from engine.modeling.loader.gguf import converter as gguf
from engine.modeling.loader.gguf.blocks import unpacked
from engine.modeling.loader.safetensors_reader import read_tensors
from engine.modeling.loader.weight_files import weight_files

TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
    "eos_token_id": 5,
}
GEMMA3 = TINY | {
    "num_hidden_layers": 7,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 16,
    "tie_word_embeddings": True,
    "pad_token_id": None,
}
GEMMA2 = GEMMA3 | {"num_hidden_layers": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
WIDE = TINY | {"hidden_size": 256, "intermediate_size": 512}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GLM4_MOE = TINY | {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "head_dim": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "use_qk_norm": True,
    "attention_bias": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}


def with_biases(model: PreTrainedModel) -> PreTrainedModel:
    """Biases of experts' scores, and of projections, that are not zero."""
    for name, value in model.state_dict().items():
        if name.endswith("bias"):
            value.normal_(std=0.1)
    return model


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**TINY)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**TINY, head_dim=32)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**GEMMA2)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**GEMMA3)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**TINY, pad_token_id=None)),
    "qwen2moe": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(**TINY, **EXPERTS, shared_expert_intermediate_size=64)
    ),
    "qwen3moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**TINY, **EXPERTS, head_dim=32, norm_topk_prob=True)
    ),
    "glm4moe": lambda: with_biases(Glm4MoeForCausalLM(Glm4MoeConfig(**GLM4_MOE))),
}
HALVES = {"Q6_K": [208], "Q4_K": [0, 2], "Q2_K": [80, 82], "IQ2_XXS": [0]}
VOCABULARY = [*map(chr, range(33, 127)), "ab", "</s>"]
MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


GEMMA3_MODULES = MODULES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


QWEN_MOE_MODULES = MODULES | {
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.gate.": "ffn_gate_inp.",
}
GLM4_MOE_MODULES = {
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate.": "ffn_gate_inp.",
    **MODULES,
    "post_attention_layernorm": "post_attention_norm",
}
PHI3_MODULES = MODULES | {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
MODULES_OF = {
    "gemma2": GEMMA3_MODULES,
    "gemma3": GEMMA3_MODULES,
    "phi3": PHI3_MODULES,
    "qwen2moe": QWEN_MOE_MODULES,
    "qwen3moe": QWEN_MOE_MODULES,
    "glm4moe": GLM4_MOE_MODULES,
}


def as_llama_cpp_has_it(model: PreTrainedModel, architecture: str) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values of the tensors; experts stacked."""
    config = model.config
    for name, tensor in model.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        value = tensor.numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            value = llama_cpp_order(value, heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            value = value + 1.0
        if name.endswith("mlp.experts.gate_up_proj"):
            layer = name.split(".")[2]
            for part, of_experts in zip(("gate", "up"), np.split(value, 2, axis=1), strict=True):
                yield f"blk.{layer}.ffn_{part}_exps.weight", np.ascontiguousarray(of_experts)
        elif name.endswith("mlp.experts.down_proj"):
            yield f"blk.{name.split('.')[2]}.ffn_down_exps.weight", value
        else:
            named = gguf_name(name, architecture)
            yield named, value[0] if "ffn_gate_inp_shexp" in named else value


def gguf_name(name: str, architecture: str) -> str:
    for ours, theirs in MODULES_OF.get(architecture, MODULES).items():
        name = name.replace(ours, theirs)
    name = name.replace("model.layers.", "blk.").replace("model.embed_tokens", "token_embd")
    return name.replace("model.norm", "output_norm").replace("lm_head", "output")


def llama_cpp_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Interleave the halves of each head, as llama.cpp's own converter does for llama."""
    rows = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(weight.shape))


def write(
    path: Path,
    architecture: str,
    model: PreTrainedModel,
    kind: Kind | Callable[[str], Kind] = Kind.F32,
    extra: Callable[[GGUFWriter], None] = lambda writer: None,
    tokenizer: str = "gpt2",
    tensors_a_part: int = 0,
) -> None:
    config = model.config
    kind_of = kind if callable(kind) else lambda name: kind
    writer = GGUFWriter(path, architecture, split_max_tensors=tensors_a_part)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(model.model.layers[0].self_attn.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if architecture.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture.endswith("moe"):
        add_experts(writer, config, architecture)
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_scores([0.0] * config.vocab_size)
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(5)
    extra(writer)
    for name, value in as_llama_cpp_has_it(model, architecture):
        raw = Kind.F32 if value.ndim == 1 or ".ffn_gate_inp." in name else kind_of(name)
        writer.add_tensor(name, packed(value, raw), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_experts(writer: GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_expert_count(config.num_local_experts if architecture == "glm4moe" else config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture == "glm4moe":
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_rope_dimension_count(16)


def tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for name, stored in read_tensors(weight_files(folder)):
        yield from unpacked(name, stored, None, torch.float32)


def packed(value: np.ndarray, kind: Kind) -> np.ndarray:
    """Blocks of `value`, or of random codes for a type that gguf's package cannot quantize to."""
    if kind.name not in HALVES:
        return quantize(value, kind)
    block, size = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(value.size)
    data = random.integers(0, 256, (*value.shape[:-1], value.shape[-1] // block * size), dtype=np.uint8)
    for one in data.reshape(-1, size):
        for at in HALVES[kind.name]:  # the scales, which random bytes would make infinite
            one[at : at + 2] = np.array([random.normal(scale=2e-4)], np.float16).view(np.uint8)
    return data


def converted(path: Path, *, keep_codes: bool = False) -> Path:
    folder = path.with_suffix(".codes" if keep_codes else "")
    folder.mkdir()
    gguf.convert([path], folder, silent, keep_codes=keep_codes)
    return folder


def weights_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
