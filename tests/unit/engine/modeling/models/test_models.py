"""Every architecture against transformers, from one folder on disk, in float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.model_config.architectures import ARCHITECTURES
from engine.modeling.loader.model_loader import load_model
from engine.modeling.models import registry
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.models.hybrid_references import nemotron_h
from tests.unit.engine.modeling.models.reference_names import LIKE_OTHERS, NAMES
from tests.unit.engine.modeling.models.references import TINY, logits, reference, tolerance
from tests.unit.engine.modeling.models.vision_references import with_vision


@pytest.mark.parametrize("name", NAMES + LIKE_OTHERS)
@torch.inference_mode()
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    oracle = reference(name)
    oracle.save_pretrained(tmp_path)
    ids = torch.randint(97, (200,), generator=torch.Generator().manual_seed(1))

    ours = logits(load_model(tmp_path), ids)

    torch.testing.assert_close(ours, oracle(ids[None]).logits[0], atol=tolerance(name), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_the_number_of_threads_changes_no_bit(name: str, tmp_path: Path) -> None:
    """A worker changes it between two steps of an answer."""
    reference(name).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    before = torch.get_num_threads()
    for rows in (1, 200):
        ids = torch.randint(97, (rows,), generator=torch.Generator().manual_seed(1))
        by_threads = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            by_threads.append(logits(model, ids))
        torch.set_num_threads(before)
        assert torch.equal(by_threads[0], by_threads[1])
        assert torch.equal(by_threads[0], by_threads[2])


@pytest.mark.parametrize(
    "name", ["mistral 3", "qwen2.5-vl", "qwen3-vl", "qwen3-vl with experts", "internvl", "smolvlm", "gemma4"]
)
@torch.inference_mode()
def test_text_is_read_as_by_a_model_with_a_vision_part(name: str, tmp_path: Path) -> None:
    oracle = with_vision(name).eval()
    oracle.save_pretrained(tmp_path)
    ids = torch.randint(97, (100,), generator=torch.Generator().manual_seed(1))

    ours = logits(load_model(tmp_path), ids)

    torch.testing.assert_close(ours, oracle(ids[None]).logits[0], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_experts_of_qwen3_vl_are_read_in_both_orientations(tmp_path: Path) -> None:
    with_vision("qwen3-vl with experts").save_pretrained(tmp_path)
    ids = torch.randint(97, (30,), generator=torch.Generator().manual_seed(1))
    before = logits(load_model(tmp_path), ids)
    file = tmp_path / "model.safetensors"
    tensors = {
        name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file)

    assert any(".experts." in name for name in tensors)
    assert torch.equal(logits(load_model(tmp_path), ids), before)


@torch.inference_mode()
def test_steps_of_mamba2_are_not_smaller_than_the_smallest(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention"]
    oracle = nemotron_h({**TINY, "eos_token_id": None}, kinds, smallest_step=0.9).eval()
    oracle.save_pretrained(tmp_path)
    ids = torch.randint(97, (50,), generator=torch.Generator().manual_seed(1))

    ours = logits(load_model(tmp_path), ids)

    torch.testing.assert_close(ours, oracle(ids[None]).logits[0], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_longrope_has_other_angles_for_requests_beyond_the_original_context(tmp_path: Path) -> None:
    oracle = reference("phi3 with longrope")
    oracle.save_pretrained(tmp_path)
    ids = torch.randint(97, (301,), generator=torch.Generator().manual_seed(1))

    ours = logits(load_model(tmp_path, context=301), ids)

    torch.testing.assert_close(ours, oracle(ids[None]).logits[0], atol=1e-5, rtol=1e-5)
    within = oracle(ids[None, :300]).logits[0]
    torch.testing.assert_close(
        logits(load_model(tmp_path, context=300), ids[:300]), within, atol=1e-5, rtol=1e-5
    )


def test_only_architectures_that_a_spec_accepts_have_a_model_other_than_llamas() -> None:
    assert registry._MODELS.keys() < ARCHITECTURES.keys()


@torch.inference_mode()
def test_bfloat16_weights_give_logits_near_the_reference(tmp_path: Path) -> None:
    oracle = reference("qwen3")
    oracle.save_pretrained(tmp_path)
    ids = torch.arange(50)

    ours = logits(load_model(tmp_path, dtype="bfloat16"), ids)

    exact = oracle(ids[None]).logits[0]
    assert (ours.float() - exact).norm() / exact.norm() < 0.05


@torch.inference_mode()
def test_hidden_states_do_not_depend_on_what_the_caller_keeps(tmp_path: Path) -> None:
    """Layers write into their arguments; what the caller passes must survive."""
    reference("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path)
    ids, positions = torch.arange(20), torch.arange(20)

    first = model(ids, positions, DenseAttention(model))
    second = model(ids, positions, DenseAttention(model))

    assert torch.equal(first, second)
    assert torch.equal(ids, torch.arange(20))


@torch.inference_mode()
def test_experts_in_mxfp4_are_those_of_their_dequantized_weights(tmp_path: Path) -> None:
    """gpt-oss's tensors hold the blocks of all experts, with gate and up interleaved."""
    sizes = {"hidden_size": 64, "intermediate_size": 32, "head_dim": 16, "num_local_experts": 3}
    config = GptOssConfig(**(TINY | sizes), num_experts_per_tok=2, sliding_window=20)
    oracle = GptOssForCausalLM(config).eval()
    oracle.set_attn_implementation("eager")
    oracle.save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = load_file(file)
    weights = dict(oracle.named_parameters())
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, depth, features = tensors.pop(name).shape
        blocks = torch.randint(256, (experts, features, depth // 32, 16), dtype=torch.uint8)
        scales = torch.randint(120, 124, blocks.shape[:-1], dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        weights[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, file)
    described = json.loads((tmp_path / "config.json").read_text())
    described["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(described))
    ids = torch.arange(60)

    ours = logits(load_model(tmp_path), ids)

    torch.testing.assert_close(ours, oracle(ids[None]).logits[0], atol=1e-4, rtol=1e-4)
