"""How llama.cpp's converter names and orders what it rearranges, and describes it in metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from gguf import ExpertGatingFuncType, GGUFWriter

from tests.unit.engine.modeling.loader.gguf.tiny_files import (
    TINY,
    llama_cpp_order,
)

Tensors = Iterator[tuple[str, np.ndarray]]

NO_PADDING: Final[dict[str, Any]] = {"pad_token_id": None}
GEMMA4: Final[dict[str, Any]] = (
    TINY
    | NO_PADDING
    | {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "head_dim": 32,
        "global_head_dim": 64,
        "sliding_window": 16,
        "final_logit_softcapping": 5.0,
    }
)


def of_ministral3(config: Any, module: str, value: np.ndarray) -> Tensors:
    if module in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
        heads = config.num_attention_heads if "q_proj" in module else config.num_key_value_heads
        value = llama_cpp_order(value, heads)
    yield module, value


def of_deepseek(config: Any, module: str, value: np.ndarray) -> Tensors:
    if module == "self_attn.kv_b_proj.weight":
        sizes = (config.qk_nope_head_dim, config.v_head_dim)
        of_heads = value.reshape(config.num_attention_heads, sum(sizes), -1)
        keys, values = np.split(of_heads, [sizes[0]], axis=1)
        yield "attn_k_b.weight", keys.swapaxes(1, 2)
        yield "attn_v_b.weight", values
    elif module.endswith("e_score_correction_bias"):
        yield "exp_probs_b.bias", value
    else:
        yield module, value


def of_qwen35(config: Any, module: str, value: np.ndarray) -> Tensors:
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    behind = 2 * keys * config.linear_key_head_dim

    def tiled(part: np.ndarray, axis: int = 0) -> np.ndarray:
        """Value heads 0, 1, 2 of key head a and 3, 4, 5 of b in the order 0, 3, 1, 4, 2, 5."""
        order = np.arange(heads).reshape(keys, -1).T.ravel()
        of_heads = np.split(part, heads, axis=axis)
        return np.concatenate([of_heads[head] for head in order], axis=axis)

    name = module.removeprefix("linear_attn.")
    match name:
        case "in_proj_qkv.weight":
            value = np.concatenate([value[:behind], tiled(value[behind:])])
        case "conv1d.weight":
            value = value[:, 0]
            value = np.concatenate([value[:behind], tiled(value[behind:])])
        case "in_proj_z.weight" | "in_proj_a.weight" | "in_proj_b.weight":
            value = tiled(value)
        case "out_proj.weight":
            value = tiled(value, 1)
        case "A_log":
            module, value = "ssm_a", -np.exp(tiled(value))
        case "dt_bias":
            module, value = "ssm_dt.bias", tiled(value)
        case "post_attention_layernorm.weight":
            module, value = "post_attention_norm.weight", value + 1
        case "mlp.shared_expert_gate.weight":
            value = value[0]
        case "norm.weight":
            pass
        case _ if name.endswith("norm.weight"):
            value = value + 1
    yield module, value


def of_gemma4(config: Any, module: str, value: np.ndarray) -> Tensors:
    exact = {
        "post_attention_layernorm.weight": "post_attention_norm.weight",
        "pre_feedforward_layernorm.weight": "ffn_norm.weight",
        "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
        "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
        "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
        "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
        "layer_scalar": "layer_output_scale.weight",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
    }
    yield exact.get(module, module), value


def of_latents(writer: GGUFWriter, config: Any) -> None:
    v3 = config.model_type == "deepseek_v3"
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID if v3 else ExpertGatingFuncType.SOFTMAX)
    if config.norm_topk_prob and v3:
        writer.add_expert_weights_norm(value=True)
    if config.n_group is not None:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    yarn(writer, config, 0.1)


def yarn(writer: GGUFWriter, config: Any, log_factor: float) -> None:
    rope = config.rope_parameters
    if rope["rope_type"] != "yarn":
        return
    writer.add_string(f"{writer.arch}.rope.scaling.type", "yarn")
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_scaling_yarn_log_mul(log_factor * rope["mscale_all_dim"])


def of_scaled_queries(writer: GGUFWriter, config: Any) -> None:
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    yarn(writer, config, 1.0)
    writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])


def of_delta_nets(writer: GGUFWriter, config: Any) -> None:
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(int(config.head_dim * 0.25))
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
    if writer.arch == "qwen35moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def of_two_head_sizes(writer: GGUFWriter, config: Any) -> None:
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    writer.add_sliding_window_pattern(slides)
    writer.add_sliding_window(config.sliding_window)
    writer.add_key_length(GEMMA4["global_head_dim"])
    writer.add_key_length_swa(GEMMA4["head_dim"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input or 0)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_head_count_kv([2 if slide or not config.attention_k_eq_v else 1 for slide in slides])
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    rotated = int(GEMMA4["global_head_dim"] * 0.25 / 2)
    unrotated = GEMMA4["global_head_dim"] // 2 - rotated
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * rotated + [1e30] * unrotated, np.float32))
