"""A GGUF file of gpt-oss becomes the checkpoint that it was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, TokenType, dequantize
from safetensors.torch import load_file

from common.progress import silent
from engine.model_config.errors import UnsupportedModel
from engine.modeling.loader.gguf.converter import convert
from engine.modeling.loader.model_loader import load_model
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.loader.test_mxfp4_checkpoint import IDS, save_mxfp4

NAMES = {
    "model.layers.": "blk.",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
}


def packed(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[E, rows, groups, 16] and [E, rows, groups] -> llama.cpp's blocks, [E, rows, groups * 17]."""
    values = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:3], 32)
    halves = values[..., :16] | values[..., 16:] << 4
    joined = np.concatenate([scales[..., None], halves], axis=-1)
    return np.ascontiguousarray(joined.reshape(*joined.shape[:2], -1))


def write(path: Path, original: Path, kind: Kind = Kind.MXFP4) -> None:
    config = json.loads((original / "config.json").read_text())
    writer = GGUFWriter(path, "gpt-oss")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_string("gpt-oss.rope.scaling.type", rope["rope_type"])
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    tokens = [*map(chr, range(33, 127)), "ab", "</s>", "<pad>"]
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["a b"])
    for name, value in as_llama_cpp_has_them(load_file(original / "model.safetensors")):
        if value.dtype != np.uint8:
            writer.add_tensor(name, value)
        elif kind is Kind.MXFP4:
            writer.add_tensor(name, value, raw_dtype=kind)
        else:
            writer.add_tensor(name, dequantize(value, Kind.MXFP4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_llama_cpp_has_them(tensors: dict[str, torch.Tensor]) -> list[tuple[str, np.ndarray]]:
    found: list[tuple[str, np.ndarray]] = []
    for name, tensor in tensors.items():
        layer, value = name.removeprefix("model.layers.").partition(".")[0], tensor.numpy()
        scales: Any = tensors.get(name.replace("_blocks", "_scales"), tensor).numpy()
        if name.endswith("down_proj_blocks"):
            found.append((f"blk.{layer}.ffn_down_exps.weight", packed(value, scales)))
        elif name.endswith("gate_up_proj_blocks"):
            for at, part in enumerate(("gate", "up")):
                blocks = packed(value[:, at::2], scales[:, at::2])
                found.append((f"blk.{layer}.ffn_{part}_exps.weight", blocks))
        elif name.endswith("gate_up_proj_bias"):
            for at, part in enumerate(("gate", "up")):
                found.append((f"blk.{layer}.ffn_{part}_exps.bias", np.ascontiguousarray(value[:, at::2])))
        elif not name.endswith("_scales"):
            for ours, theirs in NAMES.items():
                name = name.replace(ours, theirs)
            found.append((name, value))
    return found


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mxfp4(tmp_path_factory.mktemp("gpt-oss"))


@pytest.mark.parametrize("keep_codes", [True, False])
@torch.inference_mode()
def test_the_checkpoint_comes_back_bit_for_bit(original: Path, keep_codes: bool, tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", original)
    folder = tmp_path / "model"
    folder.mkdir()

    convert([tmp_path / "model.gguf"], folder, silent, keep_codes=keep_codes)

    found, expected = load_file(folder / "model-00001.safetensors"), load_file(original / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    one, other = load_model(folder), load_model(original)
    assert one.spec.rope == other.spec.rope
    assert one.spec.attention == other.spec.attention
    assert torch.equal(*(m.logits(m(IDS, torch.arange(60), DenseAttention(m))) for m in (one, other)))


def test_experts_in_another_type_are_refused_by_name(original: Path, tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", original, Kind.F32)
    folder = tmp_path / "model"
    folder.mkdir()

    with pytest.raises(UnsupportedModel, match=r"_exps.weight as F32; .* MXFP4"):
        convert([tmp_path / "model.gguf"], folder, silent)
