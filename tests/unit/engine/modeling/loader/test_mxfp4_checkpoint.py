"""A gpt-oss checkpoint in MXFP4 is what transformers makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM, Mxfp4Config

from engine.modeling.layers.formats.fp4 import Mxfp4
from engine.modeling.loader.model_loader import load_model
from engine.parallel import TorchCommunicator
from tests.ranks import together
from tests.unit.engine.dense_attention import DenseAttention

IDS = torch.arange(60) * 7 % 97
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[E, out, in] -> blocks [E, out, in / 32, 16] and scales [E, out, in / 32], as gpt-oss stores them."""
    grouped = weight.unflatten(-1, (-1, 32))
    exponents = grouped.abs().amax(-1).log2().floor() - 2  # 6 = 1.5 * 2^2 is the largest
    values = grouped / exponents.exp2().unsqueeze(-1)
    codes = (values.abs().unsqueeze(-1) - MAGNITUDES).abs().argmin(-1) | (values < 0).int() << 3
    blocks = codes[..., ::2] | codes[..., 1::2] << 4
    return blocks.to(torch.uint8), (exponents + 127).to(torch.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mxfp4(tmp_path_factory.mktemp("gpt-oss"))


def save_mxfp4(folder: Path) -> Path:
    """A tiny gpt-oss with two layers."""
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=20,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    GptOssForCausalLM(config).save_pretrained(folder)
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = tensor
            continue
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = quantized(tensor.transpose(1, 2))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    left_out = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    method = {"quant_method": "mxfp4", "modules_to_not_convert": left_out}
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": method}))
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Tensor:
    oracle = GptOssForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    with torch.no_grad():
        logits: Tensor = oracle(IDS[None]).logits[0]
    return logits


def test_logits_are_those_of_transformers(folder: Path, expected: Tensor) -> None:
    model = load_model(folder)

    with torch.inference_mode():
        logits = model.logits(model(IDS, torch.arange(len(IDS)), DenseAttention(model)))

    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_ranks_hold_the_blocks_of_their_part(folder: Path, expected: Tensor, groups: int) -> None:
    @torch.inference_mode()
    def logits(ranks: TorchCommunicator) -> Tensor:
        model = load_model(folder, communicator=ranks, expert_parallel_size=groups)
        ranks.all_reduce_min(0)  # loading sets torch's default dtype for the process
        return model.logits(model(IDS, torch.arange(len(IDS)), DenseAttention(model)))

    leader, _ = together(2, logits)

    torch.testing.assert_close(leader, expected, atol=1e-4, rtol=1e-5)


def test_every_stored_value_is_the_nearest_of_its_block() -> None:
    """The quantizer above is checked: what it writes is near what it was given."""
    torch.manual_seed(0)
    weight = torch.randn(2, 8, 64)
    blocks, scales = quantized(weight)
    values = Mxfp4(torch.float32).dense({"blocks": blocks.flatten(-2), "scales": scales})
    step = (scales.float() - 127).exp2().repeat_interleave(32, -1)
    assert ((values - weight).abs() <= 2 * step).all()


def test_dummy_weights_are_finite(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    model = load_model(tmp_path, load_format="dummy")
    with torch.inference_mode():
        logits = model.logits(model(IDS, torch.arange(len(IDS)), DenseAttention(model)))
    assert torch.isfinite(logits).all()
    assert logits.std() > 0
