"""The architectures of GGUF files whose tensors llama.cpp's converter rearranges, beyond pairs of features.

Rows of a matrix are ordered block by block as they are in the file; columns only where heads consist of whole
blocks. Other tensors are rearranged as values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, ExpertGatingFuncType, ReaderTensor, dequantize

from engine.modeling.loader.gguf.architectures import (
    ATTENTION,
    EXPERTS,
    LATENT,
    MLP,
    SHARED_EXPERT,
    GgufArchitecture,
    Part,
    num_layers,
    qwen_experts,
    rope,
)
from engine.modeling.loader.gguf.metadata import DIVISORS, Metadata

Array = npt.NDArray[Any]

_UNROTATED: Final = 1e29
"""Divisors above this mark frequencies that Gemma 4 does not rotate."""
_LOG: Final = 0.1
"""Factor of YaRN's logarithm, which files of DeepSeek include and those of Ministral 3 do not."""


def _yarn(metadata: Metadata, head_dim: int, *, log_factor: float = 1.0) -> dict[str, Any]:
    found = rope(metadata, head_dim)
    if weight := metadata.model("rope.scaling.yarn_log_multiplier"):
        found |= dict.fromkeys(("mscale", "mscale_all_dim"), weight / log_factor)
    return found


def _ministral3(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    found = _yarn(metadata, head_dim)
    if beta := metadata.model("attention.temperature_scale"):
        found["llama_4_scaling_beta"] = beta
    return {"rope_parameters": found}


def _is_v3(metadata: Metadata) -> bool:
    return bool(metadata.model("expert_gating_func") == ExpertGatingFuncType.SIGMOID)


def _deepseek(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    rotated = metadata.need("rope.dimension_count")
    query = metadata.model("attention.key_length_mla") or metadata.need("attention.key_length")
    groups = metadata.model("expert_group_count") or 1
    v3 = _is_v3(metadata)
    return {
        "architectures": ["DeepseekV3ForCausalLM" if v3 else "DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3" if v3 else "deepseek_v2",
        "num_hidden_layers": num_layers(metadata),
        "num_key_value_heads": metadata.need("attention.head_count"),
        "head_dim": rotated,
        "q_lora_rank": metadata.model("attention.q_lora_rank"),
        "kv_lora_rank": metadata.need("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": query - rotated,
        "v_head_dim": metadata.model("attention.value_length_mla") or metadata.need("attention.value_length"),
        "n_routed_experts": metadata.need("expert_count"),
        "n_shared_experts": metadata.model("expert_shared_count"),
        "num_experts_per_tok": metadata.need("expert_used_count"),
        "moe_intermediate_size": metadata.need("expert_feed_forward_length"),
        "first_k_dense_replace": metadata.need("leading_dense_block_count"),
        "routed_scaling_factor": metadata.model("expert_weights_scale") or 1.0,
        "norm_topk_prob": bool(metadata.model("expert_weights_norm")),
        "topk_method": "greedy" if groups == 1 else "group_limited_greedy",
        "n_group": groups,
        "topk_group": metadata.model("expert_group_used_count") or 1,
        "rope_parameters": _yarn(metadata, rotated, log_factor=_LOG),
    }


def _delta_nets(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    values = metadata.need("ssm.time_step_rank")
    layers = range(num_layers(metadata))
    attends = [f"blk.{layer}.attn_q.weight" in metadata.shapes for layer in layers]
    return {
        "num_hidden_layers": len(layers),
        "layer_types": ["full_attention" if one else "linear_attention" for one in attends],
        "linear_num_key_heads": metadata.need("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_key_head_dim": metadata.need("ssm.state_size"),
        "linear_value_head_dim": metadata.need("ssm.inner_size") // values,
        "linear_conv_kernel_dim": metadata.need("ssm.conv_kernel"),
    }


def _delta_nets_and_experts(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    experts = qwen_experts(metadata, head_dim) | {"norm_topk_prob": True}
    shared = {"intermediate_size": experts["shared_expert_intermediate_size"]}  # there is no plain MLP
    return _delta_nets(metadata, head_dim) | experts | shared


def _gemma4(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    slides = list(metadata.need("attention.sliding_window_pattern"))
    kv_heads, inner = metadata.need("attention.head_count_kv"), metadata.need("feed_forward_length")
    heads = kv_heads if isinstance(kv_heads, list) else [kv_heads] * len(slides)
    inners = inner if isinstance(inner, list) else [inner]
    full = slides.index(False)
    divisors = metadata.values(DIVISORS)
    rotated = sum(divisor < _UNROTATED for divisor in divisors) / len(divisors) if divisors else 1.0
    theta, local = metadata.need("rope.freq_base"), metadata.need("rope.freq_base_swa")
    proportional = {"rope_type": "proportional", "partial_rotary_factor": rotated, "rope_theta": theta}
    table = metadata.shapes.get("per_layer_token_embd.weight")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": metadata.need("attention.key_length_swa"),
        "global_head_dim": head_dim,
        "num_key_value_heads": heads[slides.index(True)],
        "num_global_key_value_heads": heads[full],
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in metadata.shapes,
        "num_kv_shared_layers": metadata.model("attention.shared_kv_layers") or 0,
        "intermediate_size": inners[0],
        "use_double_wide_mlp": inners[-1] != inners[0],
        "hidden_size_per_layer_input": metadata.model("embedding_length_per_layer_input") or 0,
        "vocab_size_per_layer_input": table[0] if table else None,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        "rope_parameters": {
            "full_attention": proportional,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
        "final_logit_softcapping": metadata.model("final_logit_softcapping"),
        "enable_moe_block": bool(metadata.model("expert_count")),
        "num_experts": metadata.model("expert_count"),
        "top_k_experts": metadata.model("expert_used_count"),
        "moe_intermediate_size": metadata.model("expert_feed_forward_length"),
    }


def _joined_expansions(
    metadata: Metadata, tensor: ReaderTensor, tensors: Mapping[str, ReaderTensor]
) -> Iterator[Part] | None:
    """A file has the matrices of values apart, [heads, features, rank], and those of keys transposed."""
    match tensor.name.split("."):
        case ["blk", _, "attn_v_b", _]:
            return iter(())
        case ["blk", layer, "attn_k_b", _]:
            keys = _values(tensor).swapaxes(1, 2)
            values = _values(tensors[f"blk.{layer}.attn_v_b.weight"])
            both = np.concatenate([keys, values], axis=1)
            return iter([Part(f"blk.{layer}.attn_kv_b.weight", both.reshape(-1, both.shape[2]))])
    return None


def _values(tensor: ReaderTensor) -> Array:
    """In 16 bits, where the file has fewer."""
    values: Array = dequantize(tensor.data, tensor.tensor_type)
    return values if tensor.n_bytes >= 4 * tensor.n_elements else values.astype(np.float16)


def _grouped_heads(
    metadata: Metadata, tensor: ReaderTensor, tensors: Mapping[str, ReaderTensor]
) -> Iterator[Part] | None:
    """Value heads of delta nets are in the order of their key heads; a file has the first of each first."""
    if not tensor.name.startswith("blk."):
        return None
    layer, module = tensor.name.split(".")[1:3]
    if f"blk.{layer}.ssm_a" not in tensors:
        return _apart(metadata, tensor, tensors)
    keys, heads = metadata.need("ssm.group_count"), metadata.need("ssm.time_step_rank")
    width = metadata.need("ssm.inner_size") // heads
    behind = 2 * keys * metadata.need("ssm.state_size")
    value = tensor.data

    def rows(value: Array, first: int, each: int) -> Array:
        """Rows of value heads from `first` on, `each` of a head."""
        tiled = value[first:].reshape(heads // keys, keys, each, *value.shape[1:])
        return np.concatenate([value[:first], tiled.swapaxes(0, 1).reshape(value[first:].shape)])

    match module:
        case "attn_qkv":
            return iter([Part(tensor.name, rows(value, behind, width), tensor.tensor_type)])
        case "ssm_conv1d":
            return iter([Part(tensor.name, rows(value, behind, width)[:, None])])
        case "attn_gate":
            return iter([Part(tensor.name, rows(value, 0, width), tensor.tensor_type)])
        case "ssm_alpha" | "ssm_beta" | "ssm_dt":
            return iter([Part(tensor.name, rows(value, 0, 1), tensor.tensor_type)])
        case "ssm_a":
            return iter([Part(tensor.name, np.log(-rows(value, 0, 1)))])
        case "ssm_out":
            return iter([_columns(tensor, keys, heads, width)])
    return _apart(metadata, tensor, tensors)


def _columns(tensor: ReaderTensor, keys: int, heads: int, width: int) -> Part:
    whole = keeps_blocks(tensor, width)
    value = tensor.data if whole else _values(tensor)
    tiled = value.reshape(len(value), heads // keys, keys, -1).swapaxes(1, 2)
    return Part(tensor.name, tiled.reshape(value.shape), tensor.tensor_type if whole else None)


def keeps_blocks(tensor: ReaderTensor, width: int) -> bool:
    """Whether `width` columns are whole blocks."""
    return bool(width % GGML_QUANT_SIZES[tensor.tensor_type][0] == 0)


def _not_coded(metadata: Metadata, tensors: Mapping[str, ReaderTensor]) -> frozenset[str]:
    heads = metadata.need("ssm.time_step_rank")
    width = metadata.need("ssm.inner_size") // heads
    return frozenset(
        name
        for name, tensor in tensors.items()
        if name.endswith(".ssm_out.weight") and not keeps_blocks(tensor, width)
    )


def _apart(
    metadata: Metadata, tensor: ReaderTensor, tensors: Mapping[str, ReaderTensor]
) -> Iterator[Part] | None:
    """Gates and the products beside them, where a file has those of all experts in one tensor."""
    if not tensor.name.endswith(".ffn_gate_up_exps.weight"):
        return None
    halves = np.split(tensor.data, 2, axis=1)
    names = (tensor.name.replace("_gate_up_", f"_{part}_") for part in ("gate", "up"))
    return (Part(name, half, tensor.tensor_type) for name, half in zip(names, halves, strict=True))


_DELTA: Final = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_out": "linear_attn.out_proj",
    "ssm_norm": "linear_attn.norm",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "post_attention_norm": "post_attention_layernorm",
}
_GEMMA4: Final = {
    **ATTENTION,
    **MLP,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_exps": "experts.{}.gate_proj",
    "ffn_up_exps": "experts.{}.up_proj",
    "ffn_down_exps": "experts.{}.down_proj",
    "ffn_gate_up_exps": "experts.{}.gate_up_proj",
}

REARRANGED: Final[Mapping[str, GgufArchitecture]] = {
    "mistral3": GgufArchitecture(
        "Ministral3ForCausalLM", "ministral3", fields=_ministral3, pairs_features=True
    ),
    "deepseek2": GgufArchitecture(
        "DeepseekV3ForCausalLM", "deepseek_v3", LATENT, _deepseek, rearrange=_joined_expansions
    ),
    "qwen35": GgufArchitecture(
        "Qwen3_5ForCausalLM",
        "qwen3_5_text",
        ATTENTION | MLP | _DELTA,
        _delta_nets,
        whole_norms=True,
        rearrange=_grouped_heads,
        not_coded=_not_coded,
    ),
    "qwen35moe": GgufArchitecture(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        ATTENTION | EXPERTS | SHARED_EXPERT | _DELTA,
        _delta_nets_and_experts,
        whole_norms=True,
        rearrange=_grouped_heads,
        not_coded=_not_coded,
    ),
    "gemma4": GgufArchitecture("Gemma4ForCausalLM", "gemma4_text", _GEMMA4, _gemma4, rearrange=_apart),
}
"""As `ARCHITECTURES`."""
