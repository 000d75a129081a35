"""A quantized checkpoint is the model with the values that its tensors stand for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from engine.kernels.cpu.library import cpu_kernels
from engine.model_config.errors import UnsupportedModel, WeightsError
from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.linear import codes
from engine.modeling.loader.model_loader import load_model
from engine.modeling.loader.weights_identity import shape_identity
from engine.modeling.models.base import CausalLM
from engine.parallel import TorchCommunicator
from tests.ranks import together
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.loader.quantizing import (
    FP8_FORMATS,
    INT4_FORMATS,
    INT8_FORMATS,
    Format,
    rewrite,
)
from tests.unit.engine.modeling.loader.quantizing_floats import BITSANDBYTES_FORMATS, FP4_FORMATS

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}
CODES = {**INT4_FORMATS, **INT8_FORMATS, **FP4_FORMATS}
FORMATS = {**FP8_FORMATS, **CODES, **BITSANDBYTES_FORMATS}
IDS = torch.arange(40) * 7 % 97
Written: TypeAlias = Callable[[str, str], tuple[Path, Path]]


def model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    match name:
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**SHAPE))
        case "mixtral":
            return MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=4))
        case "qwen2 with a shared expert":
            experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
            shape = {key: value for key, value in SHAPE.items() if key != "head_dim"}
            return Qwen2MoeForCausalLM(
                Qwen2MoeConfig(**shape, **experts, shared_expert_intermediate_size=256)
            )
        case "deepseek v3":
            latent = {"kv_lora_rank": 128, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64}
            experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
            groups = {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "q_lora_rank": 128}
            shape = SHAPE | {"num_key_value_heads": 8, "head_dim": 32, "pad_token_id": None}
            return DeepseekV3ForCausalLM(DeepseekV3Config(**shape, **latent, **experts, **groups))
        case "glm, which rotates half of each head":
            experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
            rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
            return Glm4MoeForCausalLM(
                Glm4MoeConfig(**SHAPE, **experts, rope_parameters=rope, pad_token_id=None)
            )
    raise ValueError(name)


def write(name: str, format: Format, folder: Path) -> tuple[Path, Path]:
    """The model quantized, and with the same values unquantized."""
    model(name).save_pretrained(folder / "source")
    rewrite(folder / "source", folder / "quantized", folder / "dense", format)
    return folder / "quantized", folder / "dense"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """As `write`, once for each model and format. The folders are not to be changed."""

    @cache
    def once(name: str, format: str) -> tuple[Path, Path]:
        return write(name, FORMATS[format], tmp_path_factory.mktemp("model"))

    return once


@torch.inference_mode()
def logits(model: CausalLM) -> Tensor:
    return model.logits(model(IDS, torch.arange(len(IDS)), DenseAttention(model)))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen2 with a shared expert"])
def test_where_dense_products_are_faster_the_values_are_computed_with(
    name: str, format: str, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: False)
    quantized, dense = written(name, format)

    assert torch.equal(logits(load_model(quantized)), logits(load_model(dense)))


@pytest.mark.skipif(cpu_kernels(torch.float32) is None, reason="the kernels cannot be compiled here")
@pytest.mark.parametrize("format", CODES)
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_weights_that_stay_packed_give_the_logits_of_their_values(
    name: str, format: str, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: True)
    quantized, dense = written(name, format)

    model = load_model(quantized)

    assert not hasattr(model.get_submodule("layers.0.attention.qkv"), "weight")
    torch.testing.assert_close(logits(model), logits(load_model(dense)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("format", ["fp8 in blocks", "awq"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["deepseek v3", "glm, which rotates half of each head"])
def test_expansions_of_latents_and_rearranged_heads_have_their_values(
    name: str, format: str, ranks: int, written: Written
) -> None:
    quantized, dense = written(name, format)

    def whole(ranks: TorchCommunicator) -> Tensor:
        part = load_model(quantized, communicator=ranks)
        ranks.all_reduce_min(0)  # loading sets torch's default dtype for the process
        return logits(part)

    found = logits(load_model(quantized)) if ranks == 1 else together(2, whole)[0]

    torch.testing.assert_close(found, logits(load_model(dense)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_ranks_hold_the_scales_of_their_weights(name: str, format: str, written: Written) -> None:
    quantized, dense = written(name, format)

    def whole(ranks: TorchCommunicator) -> Tensor:
        part = load_model(quantized, communicator=ranks)
        ranks.all_reduce_min(0)  # loading sets torch's default dtype for the process
        return logits(part)

    leader, _ = together(2, whole)

    torch.testing.assert_close(leader, logits(load_model(dense)), atol=1e-4, rtol=1e-4)


def test_a_block_that_ranks_would_share_is_refused(tmp_path: Path) -> None:
    quantized, _ = write("llama", FORMATS["fp8 in blocks"], tmp_path)

    with pytest.raises(UnsupportedModel, match=r"weight_scale_inv .* 128 features: .* use fewer ranks"):
        together(4, lambda ranks: load_model(quantized, communicator=ranks))


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_weights_quantized_at_load_are_those_of_a_checkpoint_per_channel(name: str, tmp_path: Path) -> None:
    _, dense = write(name, FORMATS["fp8 per channel"], tmp_path)

    online = logits(load_model(tmp_path / "source", quantization="fp8"))

    torch.testing.assert_close(online, logits(load_model(dense)), atol=1e-4, rtol=1e-4)


def test_modules_that_are_left_out_stay_as_they_are(tmp_path: Path) -> None:
    quantized, _ = write("llama", FORMATS["fp8 per channel"], tmp_path)
    spec = ModelSpec.from_folder(quantized).quantization
    assert spec is not None
    assert spec.covers("model.layers.0.mlp.gate_proj")
    assert not spec.covers("lm_head")
    assert not spec.covers("model.layers.0.mlp.gate")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"quant_method": "bitnet"}, "bitnet"),
        (
            {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]},
            "activation_scheme='static'",
        ),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"weight_block_size=\[64, 64\]"),
        ({"quant_method": "gptq", "bits": 3}, "gptq with bits=3"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "modelopt with quant_algo='W4A8_AWQ'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version='gemv'"),
        ({"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "kv_cache_scheme with num_bits=4"),
    ],
)
def test_formats_that_cannot_be_read_are_refused_by_name(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder, _ = write("llama", FORMATS["fp8 per channel"], tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))

    with pytest.raises(UnsupportedModel, match=named):
        load_model(folder)


def test_act_order_that_config_json_denies_is_refused(tmp_path: Path) -> None:
    folder, _ = write("llama", FORMATS["gptq"], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.g_idx"
    save_file(tensors | {name: tensors[name].flip(0).contiguous()}, folder / "model.safetensors")

    with pytest.raises(WeightsError, match=r"layers\.1\.mlp\.up_proj\.g_idx reorders .* act-order"):
        load_model(folder)


def test_projections_that_are_merged_need_one_order(tmp_path: Path) -> None:
    folder, _ = write("llama", FORMATS["gptq with act-order"], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.g_idx"
    save_file(tensors | {name: tensors[name].flip(0).contiguous()}, folder / "model.safetensors")

    with pytest.raises(WeightsError, match=r"layers\.1\.self_attn\.\w_proj\.g_idx differs .* merged"):
        load_model(folder)


@pytest.mark.parametrize(
    ("format", "changed", "problem"),
    [
        ("nf4", {"weight.quant_map": None}, r"layers\.1\.mlp\.up_proj is quantized .* no quant_map"),
        ("nf4 with quantized scales", {"weight.nested_absmax": None}, r"up_proj .* has no nested_absmax"),
        ("int8 of bitsandbytes", {"SCB": None}, r"up_proj .* has no SCB"),
        ("int8 of bitsandbytes", {"weight_format": torch.tensor(1)}, r"up_proj\.weight_format is 1, but"),
    ],
)
def test_weights_of_bitsandbytes_need_all_their_parts(
    format: str, changed: dict[str, Tensor | None], problem: str, tmp_path: Path
) -> None:
    folder, _ = write("llama", FORMATS[format], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {
        f"model.layers.1.mlp.up_proj.{name}": value for name, value in changed.items() if value is not None
    }
    gone = {f"model.layers.1.mlp.up_proj.{name}" for name, value in changed.items() if value is None}
    save_file(
        {name: value for name, value in tensors.items() if name not in gone}, folder / "model.safetensors"
    )

    with pytest.raises(WeightsError, match=problem):
        load_model(folder)


def test_weights_that_are_quantized_already_are_not_quantized_again(tmp_path: Path) -> None:
    folder, _ = write("llama", FORMATS["fp8 in blocks"], tmp_path)

    with pytest.raises(UnsupportedModel, match="fp8 in blocks already"):
        load_model(folder, quantization="fp8")


def with_head(name: str) -> Format:
    """The format, of the head too."""
    format = FORMATS[name]
    return Format({**format.config, "ignore": ["re:.*gate$"], "lm_head": True}, format.split)


@pytest.mark.parametrize("format", ["fp8 per channel", "int4 packed", "gptq", "nvfp4, compressed", "nf4"])
def test_a_quantized_head_has_its_values(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: False)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE | {"vocab_size": 104})).save_pretrained(tmp_path / "source")
    quantized, dense = tmp_path / "quantized", tmp_path / "dense"
    rewrite(tmp_path / "source", quantized, dense, with_head(format), re.compile(r"(_proj|lm_head)\.weight$"))

    assert torch.equal(logits(load_model(quantized)), logits(load_model(dense)))


def test_a_quantized_head_is_not_divided_among_ranks(tmp_path: Path) -> None:
    model("llama").save_pretrained(tmp_path / "source")
    folder = tmp_path / "quantized"
    rewrite(
        tmp_path / "source",
        folder,
        tmp_path / "dense",
        with_head("fp8 per channel"),
        re.compile("_proj|lm_head"),
    )

    with pytest.raises(UnsupportedModel, match="lm_head cannot be divided among ranks"):
        together(2, lambda ranks: load_model(folder, communicator=ranks))


def test_every_format_is_another_identity(tmp_path: Path) -> None:
    quantized, dense = write("llama", FORMATS["fp8 per channel"], tmp_path)

    identities = {shape_identity(quantized), shape_identity(dense), shape_identity(dense, "fp8")}

    assert len(identities) == 3


@pytest.mark.parametrize("format", FORMATS)
def test_dummy_weights_of_every_format_are_finite(format: str, written: Written, tmp_path: Path) -> None:
    quantized, _ = written("mixtral", format)
    folder = shutil.copytree(quantized, tmp_path / "dummy", ignore=shutil.ignore_patterns("*.safetensors"))

    assert torch.isfinite(logits(load_model(folder, load_format="dummy"))).all()


def test_parameters_take_the_bytes_of_their_format(tmp_path: Path) -> None:
    quantized, dense = write("llama", FORMATS["fp8 per channel"], tmp_path)
    small, large = (ModelSpec.from_folder(folder).weight_bytes(2) for folder in (quantized, dense))
    embeddings = 2 * 97 * 256 * 2
    assert large - embeddings == 2 * (small - embeddings)


@pytest.mark.parametrize("format", ["fp8 in blocks", "awq", "int8 per channel", "nvfp4 of modelopt"])
def test_values_of_another_kind_than_the_formats_are_refused(format: str, tmp_path: Path) -> None:
    folder, _ = write("llama", FORMATS[format], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith(("up_proj.weight", "up_proj.qweight")))
    save_file(tensors | {name: tensors[name].float()}, folder / "model.safetensors")

    with pytest.raises(WeightsError, match=rf"{name} is float32, but config\.json asks for "):
        load_model(folder)


def test_biases_of_gptq_are_needed_unless_they_are_zero(tmp_path: Path) -> None:
    folder, _ = write("llama", FORMATS["gptq"], tmp_path)
    tensors, name = load_file(folder / "model.safetensors"), "model.layers.1.mlp.up_proj.bias"
    expected = logits(load_model(folder))

    save_file(tensors | {name: torch.zeros(512)}, folder / "model.safetensors")
    assert torch.equal(logits(load_model(folder)), expected)

    save_file(tensors | {name: torch.ones(512)}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"unexpected {name}"):
        load_model(folder)
