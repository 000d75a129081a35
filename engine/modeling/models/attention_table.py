"""The names that checkpoints give to a layer's attention and norms."""

from __future__ import annotations

from typing import Final

from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Norms, QKNorm
from engine.model_config.shard import Cut, Shard
from engine.modeling.models.weight_table import ParamSlice

_GLM4_NORMS: Final = {
    "input_layernorm": "input_norm",
    "post_self_attn_layernorm": "attention_output_norm",
    "post_attention_layernorm": "mlp_norm",
    "post_mlp_layernorm": "mlp_output_norm",
}
_FUSED: Final = frozenset({"Phi3ForCausalLM"})
"""Architectures whose checkpoints have queries, keys and values in one tensor."""
_NORMS: Final = {
    Norms.BEFORE: {"input_layernorm": "input_norm", "post_attention_layernorm": "mlp_norm"},
    Norms.AFTER: {
        "post_attention_layernorm": "attention_output_norm",
        "post_feedforward_layernorm": "mlp_output_norm",
    },
    Norms.BOTH: {
        "input_layernorm": "input_norm",
        "post_attention_layernorm": "attention_output_norm",
        "pre_feedforward_layernorm": "mlp_norm",
        "post_feedforward_layernorm": "mlp_output_norm",
    },
}


def projections(spec: ModelSpec) -> list[str]:
    """The modules of a checkpoint's layer that its projection to queries, keys and values merges."""
    fused, within = spec.architecture in _FUSED, spec.attention.name
    return [f"{within}.qkv_proj"] if fused else [f"{within}.{name}_proj" for name in "qkv"]


def norm_table(spec: ModelSpec) -> dict[str, ParamSlice]:
    """Which modules of a checkpoint's layer fill the norms before and after attention and MLP."""
    names = _GLM4_NORMS if spec.architecture == "Glm4ForCausalLM" else _NORMS[spec.norms]
    return {source: ParamSlice(target) for source, target in names.items()}


def attention_table(whole: ModelSpec, part: ModelSpec, shard: Shard) -> dict[str, ParamSlice]:
    """Which modules of a checkpoint's layer fill its attention."""
    q, kv, name = part.q_size, part.kv_size, whole.attention.name
    heads, kv_heads = shard.rows(whole.q_size, q), shard.rows(whole.kv_size, kv)
    queries, keys = _rotated_first(whole, heads), _rotated_first(whole, kv_heads)
    query_norm = queries
    if whole.output_gate:
        q, queries = 2 * q, _gates_and_queries(whole, part, shard)
    table = {f"{name}.o_proj": ParamSlice("attention.out", cut=shard.columns(whole.q_size))}
    if whole.architecture in _FUSED:
        table[f"{name}.qkv_proj"] = ParamSlice("attention.qkv", cut=_stacked(queries, keys, kv_heads))
    else:
        table |= {
            f"{name}.q_proj": ParamSlice("attention.qkv", 0, q, cut=queries),
            f"{name}.k_proj": ParamSlice("attention.qkv", q, kv, cut=keys),
            f"{name}.v_proj": ParamSlice("attention.qkv", q + kv, kv, cut=kv_heads),
        }
    if whole.qk_norm is not None:
        each = whole.qk_norm is QKNorm.HEAD
        one_head = _rotated_first(whole, Cut(0, whole.head_dim, (range(whole.head_dim),)))
        table |= {
            f"{name}.q_norm": ParamSlice("attention.q_norm", cut=one_head if each else query_norm),
            f"{name}.k_norm": ParamSlice("attention.k_norm", cut=one_head if each else keys),
        }
    if whole.attention.sinks:
        cut = shard.rows(whole.num_heads, part.num_heads)
        table[name] = ParamSlice("attention", cut=cut)
    return table


def _stacked(*cuts: Cut) -> Cut:
    """Parts of tensors that a checkpoint stacks in one."""
    stretches: list[range] = []
    extent = 0
    for cut in cuts:
        stretches += [range(extent + part.start, extent + part.stop, part.step) for part in cut.stretches]
        extent += cut.extent
    return Cut(0, extent, tuple(stretches))


def _gates_and_queries(whole: ModelSpec, part: ModelSpec, shard: Shard) -> Cut:
    """This rank's gates, then its queries, from a tensor that has each head's query before its gate."""
    size, extent = whole.head_dim, 2 * whole.q_size
    (heads,) = shard.rows(whole.num_heads, part.num_heads).stretches
    gates = [range((2 * head + 1) * size, (2 * head + 2) * size) for head in heads]
    queries = tuple(range(2 * head * size, (2 * head + 1) * size) for head in heads)
    return Cut(0, extent, (*gates, *_rotated_first(whole, Cut(0, extent, queries)).stretches))


def _rotated_first(spec: ModelSpec, heads: Cut) -> Cut:
    """`heads` with the features that are rotated in the first part of either half of each head.

    Kernels rotate feature i with feature i + head_dim / 2. Where a model rotates only its first features,
    those come first in both halves, and the table turns the others by an angle of 0. Where it rotates each
    feature with the next one, the even ones come in the first half.
    """
    if not spec.rearranges_heads:
        return heads
    size = spec.head_dim
    rotated = spec.rope.rotated_features(size) if spec.rope else size
    half, kept = rotated // 2, rotated + (size - rotated) // 2
    firsts, seconds = range(half), range(half, rotated)
    if spec.interleaved_rotation:
        firsts, seconds = range(0, rotated, 2), range(1, rotated, 2)
    pieces = [piece for piece in (firsts, range(rotated, kept), seconds, range(kept, size)) if piece]
    stretches = (
        range(head + piece.start, head + piece.stop, piece.step)
        for stretch in heads.stretches
        for head in stretch[::size]
        for piece in pieces
    )
    return Cut(heads.axis, heads.extent, tuple(stretches))
